"""Chain replication of the GCS (van Renesse and Schneider, 2004)."""

from __future__ import annotations
