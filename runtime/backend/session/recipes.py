"""What a task or call makes its children of, in a form that is the same when it runs again.

The IDs of children depend on it (`ids.of_recipe`), so a parent that does the same again,
on another worker, in a process with other hash seeds, has to get the same bytes. A value's
serialized form is not that: it names the owners of the references inside, has a set's
items in any order, tells a string that is there twice from two equal ones, and classes that
travel by value have an ID that each process draws. So there are two forms here:

* **plain** values (numbers, strings, and lists, tuples, dicts and sets of them) as `marshal`
  writes them: without sharing, sets sorted;
* anything else as cloudpickle has it, with references as their object IDs, sets as their
  items' digests in order, equal strings as one, and no IDs of classes.

Values that differ may look alike where telling would cost too much: of one block of more
than `WHOLE_BYTES_MAX` (an array, or bytes) only the length and `SAMPLES` parts of it, first
and last among them, are looked at. What cannot be written a second time, though it could
once, is told by its type alone.
"""

from __future__ import annotations

import marshal
import pickle
import re

# As in `runtime.control.ids`.
from _blake2 import blake2b
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

import cloudpickle

from runtime.api.refs import ObjectRef
from runtime.backend.inputs import Input

WHOLE_BYTES_MAX = 1 << 20
"""Longer blocks are not read whole: that would take a tenth of the time of a copy, or more."""
SAMPLES = 64
_SAMPLE_BYTES = WHOLE_BYTES_MAX // SAMPLES
_DIGEST_BYTES = 16
_SHORT_BYTES = 256
"""What is no longer needs no digest."""
_INTERNED_MAX = 4096
"""Longer strings are looked up by identity alone: no two places come to share one by chance."""

_SCALARS = frozenset((int, float, bool, complex, str, bytes, type(None)))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_PLAIN = _SCALARS | _CONTAINERS
_DEPTH_MAX = 16
_MARSHAL_VERSION = 2
"""The last one that writes what is there twice twice."""
_INPUT = "\0input"
_CLASS_ID = re.compile("[0-9a-f]{32}")
"""How cloudpickle tells apart classes that travel by value."""


def of_arguments(args: Sequence[Any], kwargs: dict[str, Any], nbytes: int) -> bytes:
    """Return what tells a call's arguments; their serialized form has `nbytes` bytes.

    Which objects the inputs are is not in it.
    """
    if not kwargs and _SCALARS.issuperset(map(type, args)):
        return _marshalled(args)  # as most are
    if Input in map(type, args) or Input in map(type, kwargs.values()):
        args = [_shown(arg) for arg in args]
        kwargs = {name: _shown(arg) for name, arg in kwargs.items()}
    return of_value((tuple(args), kwargs), nbytes)


def of_value(value: Any, nbytes: int) -> bytes:
    """Return what tells a value; its serialized form has `nbytes` bytes."""
    if type(value) is bytes:
        return _digested(b"b", value) if len(value) > _SHORT_BYTES else b"b" + value
    # A value with more items than bytes has some in many places: they would be written often.
    if _is_plain(value, nbytes):
        return _marshalled(value)
    return _pickled(value, nbytes)


def _marshalled(value: Any) -> bytes:
    written = marshal.dumps(value, _MARSHAL_VERSION)
    if len(written) <= _SHORT_BYTES:
        return written
    if len(written) > WHOLE_BYTES_MAX:
        return len(written).to_bytes(8, "big") + crc32(written).to_bytes(4, "big")
    return blake2b(written, digest_size=_DIGEST_BYTES).digest()


def _shown(value: Any) -> Any:
    return (_INPUT, value.index) if type(value) is Input else value


def _is_plain(value: Any, items_max: int) -> bool:
    """Whether a value is plain, and has no more items than so many in it."""
    level: list[Any] = [value]
    for _ in range(_DEPTH_MAX):
        kinds = set(map(type, level))
        if kinds <= _SCALARS:
            return True
        if not kinds <= _PLAIN:
            return False
        within = [each for each in level if type(each) not in _SCALARS]
        items_max -= sum(map(len, within))
        if items_max < 0:
            return False
        level = list(chain.from_iterable(within))
        for each in within:
            if type(each) is dict:
                level += each.values()
    return False


def _pickled(value: Any, nbytes: int) -> bytes:
    digest = _Digest()
    buffers: list[pickle.PickleBuffer] = []
    try:
        _Pickler(digest, buffers.append, nbytes).dump(value)
        for buffer in buffers:
            digest.write(buffer.raw())
            buffer.release()
    except Exception:
        # It could be written once. To say so would fail a call that can be made.
        kind = type(value)
        return f"?{kind.__module__}.{kind.__qualname__}".encode()
    return digest.digest()


def _digested(kind: bytes, block: bytes) -> bytes:
    digest = _Digest()
    digest.write(kind)
    digest.write(block)
    return digest.digest()


class _Digest:
    """A file that keeps a digest of what is written to it, of long blocks in part."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_DIGEST_BYTES)

    def write(self, block: Any) -> int:
        view = memoryview(block).cast("B")
        length = view.nbytes
        self._hash.update(length.to_bytes(8, "big"))
        if length <= _SHORT_BYTES:
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


class _Pickler(cloudpickle.Pickler):
    """Writes what is never read again."""

    def __init__(
        self, file: _Digest, buffers: Callable[[pickle.PickleBuffer], None], nbytes: int
    ) -> None:
        super().__init__(file, 5, buffer_callback=buffers)
        self._nbytes = nbytes
        self._strings: dict[Any, Any] = {}

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is str or kind is bytes:
            return self._strings.setdefault(obj, obj) if len(obj) <= _INTERNED_MAX else None
        if kind is set or kind is frozenset:
            return kind.__name__, sorted(of_value(item, self._nbytes) for item in obj)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is ObjectRef:
            return _reference, (obj.binary(),)
        if type(obj) is TypeVar:
            return _type_variable, (obj.__name__, obj.__bound__, obj.__constraints__)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and type(reduced) is tuple and len(reduced) > 2:
            return _without_id(reduced)  # else it is one that has no name, as None's
        return reduced


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
