"""Values as bytes and back: all pickling, of both worlds."""

from __future__ import annotations
