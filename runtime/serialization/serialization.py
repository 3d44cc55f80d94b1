"""Values as bytes, and back without a copy.

The first bytes distinguish two forms:

* **bare**: a pickle of protocol 5 (``80 05 ...``) that contains the whole value;
* **laid out**: a pickle and the large parts of the value that stay out of it (its
  *buffers*, PEP 574). All numbers are little-endian::

      offset  bytes
      0       4       magic, "RTW1"
      4       4       number of buffers, b
      8       8       length of the pickle, p
      16      8 * b   length of each buffer
      ...     p       the pickle
      ...             zeros up to a multiple of 64, then a buffer; b times

  A buffer's start follows from the lengths before it, so buffers cannot
  overlap, and a total other than the number of bytes received is an error.

Buffers are: the memory of every array that is exactly a ``numpy.ndarray``,
holds no Python objects and has at least `SHARED_BYTES_MIN` bytes, a `bytes`
object of at least `BYTES_OUT_OF_BAND_MIN` as the value itself, and each
`pickle.PickleBuffer` that another class makes. `deserialize` returns such arrays as
views of its argument. Smaller arrays are in the pickle, because a buffer costs
more than the copy, and come back as views of `bytes` of their own. All arrays are
read-only, small or large; copy one to change it.

cloudpickle serializes everything else: functions, lambdas, and classes of
``__main__`` or of a function body travel by value, importable ones by name. Plain
values (numbers, strings and small containers of them) are pickled directly: for a
number, setting cloudpickle up takes longer than pickling.

Deserializing may run any code that the bytes name. Only drivers and workers do it,
on bytes from processes that know the cluster's token.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from raytwin.runtime.serialization.pickling import SHARED_BYTES_MIN, Pickler, framed
from raytwin.runtime.store.allocator import aligned

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"RTW1"
BARE = b"\x80\x05"
"""The first bytes of every pickle of protocol 5."""

BYTES_OUT_OF_BAND_MIN = 64 * 1024
"""The shortest bytes object for which saved copies are worth the larger layout."""

Copy = Callable[[memoryview, int, "bytes | memoryview"], None]
"""A function of (target, offset in the target, source)."""


def _copy(target: memoryview, start: int, source: bytes | memoryview) -> None:
    target[start : start + len(source)] = source


sink: ContextVar[list[Any] | None] = ContextVar("sink", default=None)
"""Collects the references inside of the value that is being serialized: each appends itself when
it is pickled. The list becomes `Serialized.contained`."""

_PROTOCOL = 5
_NOT_A_PICKLE = f"not a pickle of protocol {_PROTOCOL}: {{}}"
_HEADER = struct.Struct("<4sIQ")
_LENGTH_BYTES = 8

_SCALARS: set[type] = {int, float, bool, complex, str, bytes, type(None)}
_ndarray: Any = None
"""numpy's class, once numpy is loaded: a driver without arrays need not load its
10 MB. Workers inherit it from the zygote."""
_PLAIN_ITEMS_MAX = 64  # in longer containers the pickling itself takes most of the time
_PLAIN_DEPTH_MAX = 3  # (args, kwargs), one of these, and a list in it


class SerializationError(ValueError):
    """The bytes are no serialized value."""


class Serialized:
    """A value ready to be written; its buffers still refer to the value's own memory.

    So do not change the value's arrays before it is written.
    """

    __slots__ = ("_buffers", "_head", "_starts", "cloudpickled", "contained", "nbytes")

    nbytes: int
    """The number of bytes that `to_bytes` returns and `write_into` writes."""
    contained: Sequence[Any]
    """The references inside, which appended themselves to `sink`."""
    cloudpickled: bool
    """Whether it took cloudpickle: the value is neither plain nor a lone array."""

    def __init__(
        self,
        pickled: bytes,
        buffers: list[memoryview] | None = None,
        contained: Sequence[Any] | None = None,
    ) -> None:
        """Lay out `pickled` and its out-of-band `buffers` (bytes, one-dimensional).

        `contained`: None if it did not take cloudpickle.
        """
        self.cloudpickled = contained is not None
        self.contained = contained or ()
        self._head = pickled
        self._buffers = buffers or []
        self._starts: list[int] = []
        if buffers:
            lengths = [buffer.nbytes for buffer in buffers]
            header = _HEADER.pack(MAGIC, len(buffers), len(pickled))
            self._head = header + struct.pack(f"<{len(lengths)}Q", *lengths) + pickled
            self._starts, self.nbytes = _place(len(self._head), lengths)
        else:
            self.nbytes = len(pickled)

    def to_bytes(self) -> bytes:
        """Return the value's serialized form."""
        if not self._buffers:
            return self._head
        parts: list[bytes | memoryview] = [self._head]
        end = len(self._head)
        for start, buffer in zip(self._starts, self._buffers, strict=True):
            parts += bytes(start - end), buffer
            end = start + buffer.nbytes
        return b"".join(parts)

    def write_into(self, view: memoryview, copy: Copy = _copy) -> None:
        """Write the serialized form to the first `nbytes` bytes of `view`, using `copy`."""
        end = len(self._head)
        copy(view, 0, self._head)
        for start, buffer in zip(self._starts, self._buffers, strict=True):
            view[end:start] = bytes(start - end)  # reused memory: clear the old bytes
            end = start + buffer.nbytes
            copy(view, start, buffer)


def serialize(value: Any) -> Serialized:
    """Return `value` in its serialized form.

    Raises the errors of pickling, mostly TypeError or pickle.PicklingError.
    """
    if _is_plain(value, _PLAIN_DEPTH_MAX):
        if type(value) is not bytes or len(value) < BYTES_OUT_OF_BAND_MIN:
            return Serialized(pickle.dumps(value, _PROTOCOL))
        value = _LargeBytes(value)
    elif _ndarray is None and "numpy" in sys.modules:
        _learn_numpy()
        return serialize(value)
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    # A lone array or bytes object needs no cloudpickle, which takes longer.
    if type(value) is _LargeBytes or _is_out_of_band(value):
        _ArrayPickler(file, _PROTOCOL, buffer_callback=buffers.append).dump(value)
        return Serialized(file.getvalue(), [buffer.raw() for buffer in buffers])
    contained: list[Any] = []
    outer = sink.set(contained)
    try:
        _Pickler(file, buffers.append).dump(value)
    finally:
        sink.reset(outer)
    return Serialized(file.getvalue(), [buffer.raw() for buffer in buffers], contained)


def serialize_values(values: list[Any]) -> Serialized:
    """Serialize values so that each can be loaded even if others cannot.

    `deserialize` returns the values by index; see `Frames`. Raises the errors of pickling.
    """
    if len(values) == 1 or _is_plain(values, _PLAIN_DEPTH_MAX):
        return serialize(values)
    if _ndarray is None and "numpy" in sys.modules:
        _learn_numpy()
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    contained: list[Any] = []
    outer = sink.set(contained)
    try:
        frames = framed(values, _Pickler(file, buffers.append), file, buffers)
    finally:
        sink.reset(outer)
    pickle.Pickler(file, _PROTOCOL, buffer_callback=buffers.append).dump(frames)
    return Serialized(file.getvalue(), [buffer.raw() for buffer in buffers], contained)


def deserialize(data: bytes | memoryview, on_release: Callable[[], None] | None = None) -> Any:
    """Return the value that `Serialized` has written as `data`.

    Arrays in the value are read-only; those that are buffers are views of `data`, which they
    keep alive. `on_release` is called exactly once: when the last such array is collected,
    or before this returns (or raises) if nothing refers to `data` by then. It may
    run inside a garbage collection, between any two steps of any thread, so it
    must neither block nor take a lock that its caller's thread may have; Python prints
    its errors. It does not run for arrays that are alive when the interpreter exits. A
    forked child inherits it with the arrays.

    Raises SerializationError if `data` is malformed, and any error of loading the
    value, for instance an ImportError for a missing class.
    """
    if data[:2] == BARE:
        if on_release is None:
            try:
                return pickle.loads(data)
            except (pickle.UnpicklingError, EOFError) as error:
                raise SerializationError(_NOT_A_PICKLE.format(error)) from error
        try:
            return _load(data, [])
        finally:
            on_release()
    view = memoryview(data).toreadonly()
    if on_release is not None:
        # Every buffer is a slice of a memoryview of this array, and all such
        # slices share one reference to the array: it is collected with the last slice.
        import numpy as np

        holder = np.frombuffer(view, np.uint8)
        weakref.finalize(holder, on_release).atexit = False
        view = holder.data
        del holder
    buffers: list[memoryview] = []
    try:
        magic, count, pickled = _HEADER.unpack_from(view)
        lengths = struct.unpack_from(f"<{count}Q", view, _HEADER.size)
        end = _HEADER.size + count * _LENGTH_BYTES + pickled
        starts, total = _place(end, lengths)
        if magic != MAGIC or total != view.nbytes:
            raise SerializationError(f"{view.nbytes} bytes are neither a pickle nor a layout")
        buffers += [view[at : at + length] for at, length in zip(starts, lengths, strict=True)]
        return _load(view[end - pickled : end], buffers)
    except struct.error as error:
        raise SerializationError(f"{view.nbytes} bytes have no layout: {error}") from error
    finally:
        del view, buffers  # as in `_load`


def unserializable(what: str, error: TypeError) -> TypeError:
    """Return the error of something that cannot be serialized, to raise from its cause."""
    return TypeError(f"{what} cannot be serialized: {error}")


def dumps_function(function: Callable[..., Any]) -> bytes:
    """Return `function` (or a class) as bytes, by value if it cannot be imported.

    Raises the errors of pickling, mostly TypeError or pickle.PicklingError.
    """
    file = io.BytesIO()
    Pickler(file, None).dump(function)
    blob = file.getvalue()
    return blob


def loads_function(blob: bytes) -> Callable[..., Any]:
    """Return the function that `dumps_function` has written.

    Raises SerializationError if `blob` is malformed, and any error of loading it,
    for instance an ImportError for a missing module.
    """
    function: Callable[..., Any] = _load(blob, [])
    return function


def _place(end: int, lengths: list[int] | tuple[int, ...]) -> tuple[list[int], int]:
    """Return the starts of buffers of these lengths behind `end`, and the total length."""
    starts = []
    for length in lengths:
        start = aligned(end)
        starts.append(start)
        end = start + length
    return starts, end


def _load(pickled: bytes | memoryview, buffers: list[memoryview]) -> Any:
    try:
        return pickle.loads(pickled, buffers=buffers)
    except (pickle.UnpicklingError, EOFError) as error:
        raise SerializationError(_NOT_A_PICKLE.format(error)) from error
    finally:
        del pickled, buffers  # a traceback would keep them alive


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether plain pickle serializes `value` as well as cloudpickle."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return (
            len(value) <= _PLAIN_ITEMS_MAX
            and _SCALARS.issuperset(map(type, value))
            and _are_plain(value.values(), depth)
        )
    if kind is list or kind is tuple:
        return len(value) <= _PLAIN_ITEMS_MAX and _are_plain(value, depth)
    return False


def _are_plain(values: Any, depth: int) -> bool:
    if _SCALARS.issuperset(map(type, values)):
        return depth > 0
    if depth <= 1:
        return False
    for value in values:  # noqa: SIM110 - a generator takes longer, and each call's arguments come here
        if not _is_plain(value, depth - 1):
            return False
    return True


def _learn_numpy() -> None:
    """Register numpy's arrays with the picklers, once the program has loaded numpy."""
    global _ndarray
    import numpy as np

    _REDUCERS[np.ndarray] = _reduce_array
    _ndarray = np.ndarray


def _is_out_of_band(value: Any) -> bool:
    return type(value) is _ndarray and not value.dtype.hasobject and value.dtype.itemsize > 0


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """Reduce an array to a buffer, even if numpy itself would put it into the pickle.

    numpy does so if the array is not contiguous, or its dtype has no buffer format (as
    datetimes): it would be copied more often, and come back writable. A short array's
    buffer is `bytes`, which pickle and numpy handle in C.
    """
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize:
        return array.__reduce_ex__(_PROTOCOL)
    order: Any = "F" if array.flags.fnc else "C"
    named = dtype.str if dtype.isbuiltin == 1 else dtype
    if array.nbytes < SHARED_BYTES_MIN:
        return _ndarray, (array.shape, named, array.tobytes(order), 0, None, order)
    import numpy as np

    flat: Any = np.ascontiguousarray(array.T if order == "F" else array).reshape(-1).view(np.uint8)
    # Not of `flat.data`: the collector of cycles, before Python 3.13, cannot clear such a view.
    return _array, (pickle.PickleBuffer(flat), named, array.shape, order)


def _array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    import numpy as np

    # frombuffer keeps a memoryview of `buffer`, and so the whole of `data`, alive.
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order)


class _LargeBytes:
    """Bytes that stay out of the pickle; loading returns `bytes`."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        return bytes, (pickle.PickleBuffer(self._value),)


_REDUCERS: dict[type, Callable[[Any], Any]] = {}


class _ArrayPickler(pickle.Pickler):
    dispatch_table = _REDUCERS


class _Pickler(Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return _reduce_array(obj) if type(obj) is _ndarray else super().reducer_override(obj)
