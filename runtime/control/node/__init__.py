"""The node manager: joins the parts of a node, and handles heartbeats and failures."""

from __future__ import annotations
