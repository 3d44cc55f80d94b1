"""Tests of the backend `docker`; those that start containers need a Docker engine."""

from __future__ import annotations
