"""Actors: the queue of calls, the caller's side, reconstruction, the reply cache."""

from __future__ import annotations
