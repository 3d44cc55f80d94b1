"""The global control store: the cluster's tables, lineage and pub-sub."""

from __future__ import annotations
