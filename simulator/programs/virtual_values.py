"""Values in virtual time: real pickles, and blobs that only claim their size.

Arrays come back read-only, like the views of shared memory on real backends: the rules in
`serialization` hold here too. `read` reports when the last array or blob that would share
the store's memory on a real backend has been collected.
"""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import BuiltinFunctionType
from typing import Any

import cloudpickle

from raytwin.runtime.serialization.pickling import SHARED_BYTES_MIN, Pickler, framed
from raytwin.simulator.programs import process_exit

deserialize = pickle.loads
"""Return the value of a pickle."""


_PLAIN = {int, float, bool, str, bytes, type(None)}
_claimed_bytes = 0
"""Total size of the blobs pickled since `serialize` last reset it; only one thread uses it."""


class Blob:
    """A value of ``nbytes`` bytes that takes no memory."""

    __slots__ = ("__weakref__", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and other.nbytes == self.nbytes

    def __hash__(self) -> int:
        return hash((Blob, self.nbytes))

    def __repr__(self) -> str:
        return f"Blob({self.nbytes})"

    def __reduce__(self) -> Any:
        global _claimed_bytes
        _claimed_bytes += self.nbytes
        return _blob, (self.nbytes,)


_sharing: ContextVar[list[Any] | None] = ContextVar("sharing", default=None)
"""Arrays and blobs of the value that `read` is loading: on a real backend they share memory."""


def _noted(value: Any) -> Any:
    sharing = _sharing.get()
    if sharing is not None:
        sharing.append(value)
    return value


def _blob(nbytes: int) -> Blob:
    blob: Blob = _noted(Blob(nbytes))
    return blob


def read(payload: bytes, on_release: Callable[[], None]) -> Any:
    """Return the value of a pickle in the store.

    `on_release` is called exactly once: when the last of its arrays and blobs has been
    collected, or before this returns (or raises) if it has none.
    """
    sharing: list[Any] = []
    outer = _sharing.set(sharing)
    try:
        value = deserialize(payload)
    except BaseException:
        sharing.clear()
        raise
    finally:
        _sharing.reset(outer)
        if not sharing:
            on_release()
    left = len(sharing)

    def collected() -> None:
        nonlocal left
        left -= 1
        if not left:
            on_release()

    while sharing:
        weakref.finalize(sharing.pop(), collected).atexit = False
    return value


sink: ContextVar[list[Any] | None] = ContextVar("sink", default=None)
"""As in `serialization`."""


_REDUCERS: dict[type, Callable[[Any], Any]] = {}
"""The reducer of arrays, once a program has loaded numpy."""


class _Pickler(Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _REDUCERS:
            return _REDUCERS[kind](obj)
        # No memo for blobs: each occurrence claims its size.
        return NotImplemented if kind is Blob else super().reducer_override(obj)


def _reduce_array(array: Any) -> Any:
    if array.dtype.hasobject:
        return array.__reduce_ex__(5)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = array.copy()
    return _read_only, array.__reduce_ex__(5)


def _read_only(make: Callable[..., Any], made_of: tuple[Any, ...], *state: Any) -> Any:
    array = make(*made_of)
    if state:  # dates have no buffer
        array.__setstate__(*state)
    array.flags.writeable = False
    if array.nbytes >= SHARED_BYTES_MIN:
        # A view keeps its base array alive, not the array it was taken of.
        owner = array
        while type(owner.base) is type(array):
            owner = owner.base
        _noted(owner)
    return array


def _pickler(file: io.BytesIO) -> _Pickler:
    numpy = sys.modules.get("numpy")
    if numpy is not None and not _REDUCERS:
        _REDUCERS[numpy.ndarray] = _reduce_array
    return _Pickler(file, None)


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _pickler(file).dump(value)
    return file.getvalue()


def _dumps_values(values: list[Any]) -> bytes:
    file = io.BytesIO()
    return pickle.dumps(framed(values, _pickler(file), file, []), 5)


class SimSerialized:
    """A pickle and the size that it stands for."""

    __slots__ = ("contained", "nbytes", "payload")

    def __init__(self, payload: bytes, nbytes: int, contained: Sequence[Any] = ()) -> None:
        self.contained = contained
        self.payload = payload
        self.nbytes = nbytes

    def to_bytes(self) -> bytes:
        return self.payload


def _is_plain(values: list[Any]) -> bool:
    # Tasks that return None are common, and `count` is faster than a set of types.
    nothing = bool(values) and values[0] is None and values.count(None) == len(values)
    return nothing or set(map(type, values)) <= _PLAIN


def serialize(value: Any) -> SimSerialized:
    """Pickle a value by cloudpickle's rules, as real backends do."""
    kind = type(value)
    if kind in _PLAIN or (kind is list and _is_plain(value)):
        payload = pickle.dumps(value, 5)
        return SimSerialized(payload, len(payload))
    return _serialize_any(value, _dumps)


def serialize_values(values: list[Any]) -> SimSerialized:
    """As in `serialization`."""
    if len(values) == 1 or _is_plain(values):
        return serialize(values)
    return _serialize_any(values, _dumps_values)


def _serialize_any(value: Any, dumps: Callable[[Any], bytes]) -> SimSerialized:
    global _claimed_bytes
    _claimed_bytes = 0
    contained: list[Any] = []
    outer = sink.set(contained)
    try:
        payload = dumps(value)
    finally:
        sink.reset(outer)
    return SimSerialized(payload, len(payload) + _claimed_bytes, contained)


class _FunctionPickler(cloudpickle.Pickler):
    """Pickles Python's own `os._exit` and the like, imported by name before `install`, as the
    replacements of `process_exit`."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is BuiltinFunctionType:
            for name, function in process_exit.PYTHONS.items():
                if obj is function:
                    return process_exit.stand_in, (name,)
        return super().reducer_override(obj)


def dumps_function(function: Callable[..., Any]) -> bytes:
    """Pickle a function."""
    file = io.BytesIO()
    _FunctionPickler(file, 5).dump(function)
    return file.getvalue()


def loads_function(blob: bytes) -> Callable[..., Any]:
    """Return the function."""
    function: Callable[..., Any] = pickle.loads(blob)
    return function
