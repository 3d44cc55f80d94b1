"""One file per figure or table of the paper."""

from __future__ import annotations
