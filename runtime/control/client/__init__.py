"""The client in every driver and worker: submission, waiting, references."""

from __future__ import annotations
