"""Values in a form that is the same in every process: pickles without what comes by chance.

It is cloudpickle's, with references as their object IDs, equal strings as one, no IDs of
classes, and sets in an order that does not follow their items' hashes.

**That order** is the one of keys: an item's key is a digest of its own pickle, ended after so
many objects (`_KEY_OBJECTS`), for an item may refer to all that there is, to the set itself too. A
tie is looked at again with more of them, while `_AGAIN_MAX` lasts; after that the items are in
any order. Once ordered, a set's items are written where it stands, and each object once: a graph
whose nodes have sets of neighbours takes time in proportion to its edges.
"""

from __future__ import annotations

import copyreg
import pickle
import re

# As in `runtime.control.ids`.
from _blake2 import blake2b
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, TypeVar
from zlib import crc32

from runtime.api.refs import ObjectRef
from runtime.backend.pickling import Once, Pickler, dig, reductions
from runtime.backend.session.plain import (
    DIGEST_BYTES,
    PLAIN,
    SCALARS,
    SHORT_BYTES,
    WHOLE_BYTES_MAX,
    is_plain,
    marshalled,
)

SAMPLES = 64
_SAMPLE_BYTES = WHOLE_BYTES_MAX // SAMPLES
_INTERNED_MAX = 4096
"""Longer strings are looked up by identity alone: no two places come to share one by chance."""
_CLASS_ID = re.compile("[0-9a-f]{32}")
"""How cloudpickle tells apart classes that travel by value."""
_KEY_OBJECTS = (32, 1_024, 32_768)
"""So many objects are looked at for a key: at first, and if there is another one with it."""
_AGAIN_MAX = 1 << 18
"""So many in all for ties, in one value."""
_NEW: Any = vars(copyreg)["__newobj__"]
"""Makes an object of a class that says nothing of how."""
_MORE = "\0more"


def pickled(value: Any, nbytes: int) -> bytes:
    """Return what tells any value; its serialized form has `nbytes` bytes."""
    if reductions.get() is None:
        with Once():
            return pickled(value, nbytes)
    return _written(lambda digest, keep: _Pickler(digest, keep, nbytes), value)


def _written(
    make: Callable[[Digest, Callable[[pickle.PickleBuffer], None]], _Pickler], value: Any
) -> bytes:
    def write() -> bytes:
        digest = Digest()
        buffers: list[pickle.PickleBuffer] = []
        make(digest, buffers.append).dump(value)
        for buffer in buffers:
            digest.write(buffer.raw())
        return digest.digest()

    try:
        return dig(write)
    except Exception:
        # It could be written once. To say so would fail a call that can be made.
        kind = type(value)
        return f"?{kind.__module__}.{kind.__qualname__}".encode()


class Digest:
    """A file that keeps a digest of what is written to it, of long blocks in part."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def write(self, block: Any) -> int:
        view = memoryview(block).cast("B")
        length = view.nbytes
        self._hash.update(length.to_bytes(8, "big"))
        if length <= SHORT_BYTES:
            self._hash.update(view)
        elif length <= WHOLE_BYTES_MAX:
            self._hash.update(crc32(view).to_bytes(4, "big"))
        else:
            crc = 0
            for sample in range(SAMPLES):
                at = sample * (length - _SAMPLE_BYTES) // (SAMPLES - 1)
                crc = crc32(view[at : at + _SAMPLE_BYTES], crc)
            self._hash.update(crc.to_bytes(4, "big"))
        return length

    def digest(self) -> bytes:
        return b"#" + self._hash.digest()


class _Pickler(Pickler):
    """Writes what is never read again."""

    def __init__(
        self, file: Digest, buffers: Callable[[pickle.PickleBuffer], None], nbytes: int
    ) -> None:
        super().__init__(file, buffers)
        self.as_it_is = set()
        self._nbytes = nbytes
        self._strings: dict[Any, Any] = {}
        self._sets: dict[int, tuple[int, Any]] = {}
        """By identity, those that are written, or being written, with their numbers."""
        self._keys: dict[int, tuple[bytes, Any]] = {}
        """By identity, first keys of items, which may be in many sets."""
        self._left = _AGAIN_MAX

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is str or kind is bytes:
            return self._strings.setdefault(obj, obj) if len(obj) <= _INTERNED_MAX else None
        if kind is set or kind is frozenset:
            return kind.__name__, self._shown(obj)
        return None

    def _shown(self, items: Collection[Any]) -> Any:
        """Return what is written for a set."""
        known = self._sets.get(id(items))
        if known is not None:
            return known[0]
        if is_plain(items, self._nbytes):
            return marshalled(items)
        self._sets[id(items)] = len(self._sets), items
        return self._ordered(list(items), 0)

    def _ordered(self, items: list[Any], again: int) -> list[Any]:
        """Return a set's items, all alike so far, in the order of their keys."""
        objects = _KEY_OBJECTS[again]
        if again:
            self._left -= objects * len(items)
            if self._left < 0:
                return items
        by_key: dict[bytes, list[Any]] = {}
        for item in items:
            by_key.setdefault(self._key(item, objects), []).append(item)
        ordered = []
        for _, alike in sorted(by_key.items()):
            tied = len(alike) > 1 and again + 1 < len(_KEY_OBJECTS)
            ordered += self._ordered(alike, again + 1) if tied else alike
        return ordered

    def _key(self, item: Any, objects: int) -> bytes:
        if objects > _KEY_OBJECTS[0]:
            return _key(item, self._nbytes, objects)
        known = self._keys.get(id(item))
        if known is None:
            key = self._key_of_plain(item) or _key(item, self._nbytes, objects)
            known = self._keys[id(item)] = key, item
        return known[0]

    def _key_of_plain(self, item: Any) -> bytes:
        """Return the first key of an object that is made of plain values; of others nothing."""
        if type(item) in PLAIN or isinstance(item, type | FunctionType | ObjectRef):
            return b""
        assert self.made is not None
        if self.asks_nobody(type(item)):
            made = item.__reduce_ex__(5)
        else:
            made = self.made.of(item, self.dispatch_table)
        if type(made) is not tuple or made[0] is not _NEW:
            return b""
        (kind, *args), state = made[1], made[2:]
        # Most are of a few numbers and strings, by name.
        values = state[0].values() if type(state[0]) is dict and not args else ()
        simple = values and SCALARS.issuperset(map(type, values))
        if not simple and not is_plain((args, state), _KEY_OBJECTS[0]):
            return b""
        return marshalled((kind.__module__, kind.__qualname__, args, state))

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in self.as_it_is:
            return NotImplemented
        if kind is ObjectRef:
            return _reference, (obj.binary(),)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return NotImplemented  # no program's code, and it may be large
        if kind is TypeVar:
            return _type_variable, (obj.__name__, obj.__bound__, obj.__constraints__)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and type(reduced) is tuple and len(reduced) > 2:
            return _without_id(reduced)  # else it is one that has no name, as None's
        return reduced


class _Key(_Pickler):
    """Writes the beginning of an item."""

    def __init__(
        self,
        file: Digest,
        buffers: Callable[[pickle.PickleBuffer], None],
        nbytes: int,
        objects: int,
    ) -> None:
        super().__init__(file, buffers, nbytes)
        self._objects = objects
        self._by_name = objects <= _KEY_OBJECTS[0]
        """Classes are many objects, and most items of a set have the same."""

    def persistent_id(self, obj: Any) -> Any:
        self._objects -= 1
        if self._objects < 0 and obj is not _MORE:
            return _MORE
        if self._by_name and isinstance(obj, type):
            return obj.__module__, obj.__qualname__
        return super().persistent_id(obj)

    def _shown(self, items: Collection[Any]) -> Any:
        if is_plain(items, self._nbytes):
            return marshalled(items)
        # Half of what is left, in equal parts: in whatever order they come, the same is seen.
        half = self._objects // 2
        self._objects -= half
        each = half // len(items)
        if not each:
            return len(items)
        return b"".join(sorted(_key(item, self._nbytes, each) for item in items))


def _key(item: Any, nbytes: int, objects: int) -> bytes:
    """Return what tells an item by so many of the objects that it consists of."""
    if type(item) in SCALARS:
        return marshalled(item)
    return _written(lambda digest, keep: _Key(digest, keep, nbytes, objects), item)


def _without_id(reduced: tuple[Any, ...]) -> Any:
    """Return what a class by value is made of, but for what comes by chance."""
    maker, args, (members, *more), *rest = reduced
    args = tuple(
        None if isinstance(part, str) and _CLASS_ID.fullmatch(part) else part for part in args
    )
    # Only there once an instance was pickled.
    members = {name: member for name, member in members.items() if name != "__slotnames__"}
    return maker, args, (members, *more), *rest


def _reference(oid: bytes) -> None:
    """Stand for a reference."""


def _type_variable(name: str, bound: Any, constraints: Any) -> None:
    """Stand for a type variable."""
