"""The GCS's tables spread over several shards, by key."""

from __future__ import annotations
