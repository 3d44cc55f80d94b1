"""Plain values: numbers, strings, and lists, tuples, dicts and sets of them.

Marshal writes them without sharing and sets sorted, so those that are equal look the same in
every process.
"""

from __future__ import annotations

import marshal

# As in `runtime.control.ids`.
from _blake2 import blake2b
from itertools import chain
from typing import Any
from zlib import crc32

WHOLE_BYTES_MAX = 1 << 20
"""Longer blocks are not read whole: that would take a tenth of the time of a copy, or more."""
SHORT_BYTES = 256
"""What is no longer needs no digest."""
DIGEST_BYTES = 16

SCALARS = frozenset((int, float, bool, complex, str, bytes, type(None)))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
PLAIN = SCALARS | _CONTAINERS
_DEPTH_MAX = 16
_MARSHAL_VERSION = 2
"""The last one that writes what is there twice twice."""


def marshalled(value: Any) -> bytes:
    """Return what tells a plain value."""
    written = marshal.dumps(value, _MARSHAL_VERSION)
    if len(written) <= SHORT_BYTES:
        return written
    if len(written) > WHOLE_BYTES_MAX:
        return len(written).to_bytes(8, "big") + crc32(written).to_bytes(4, "big")
    return blake2b(written, digest_size=DIGEST_BYTES).digest()


def is_plain(value: Any, items_max: int) -> bool:
    """Whether a value is plain, and has no more items than so many in it."""
    level: list[Any] = [value]
    for _ in range(_DEPTH_MAX):
        kinds = set(map(type, level))
        if kinds <= SCALARS:
            return True
        if not kinds <= PLAIN:
            return False
        within = [each for each in level if type(each) not in SCALARS]
        items_max -= sum(map(len, within))
        if items_max < 0:
            return False
        level = list(chain.from_iterable(within))
        for each in within:
            if type(each) is dict:
                level += each.values()
    return False
