"""How what became of a pool's calls travels: each call's own, whatever becomes of the others'."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

import cloudpickle

Outcome = tuple[bool, Any]
"""(True, value) or (False, exception) of one call."""

_HARMLESS = frozenset((int, float, complex, bool, str, bytes, type(None)))

COPIED_BYTES_MAX = 2048
"""Arrays up to so many bytes travel in the pickle, and are read-only like larger ones."""


class Outcomes:
    """What became of a chunk's calls; it travels as a list of them.

    What cannot be pickled, and an exception that cannot be loaded, is an error of its own call.
    As one of the whole chunk it would also be that of all later chunks in the slot, which depend
    on this one.
    """

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes

    def __reduce__(self) -> Any:
        if all(ok and _is_harmless(value) for ok, value in self.outcomes):
            return list, (self.outcomes,)
        outcomes = [(ok, value if ok else _Raised(value)) for ok, value in self.outcomes]
        # Pickled here, while this is: references inside tell whoever does that of themselves.
        try:
            return _load, _pickled(outcomes)
        except Exception as error:
            if _is_too_deep(error):
                raise  # it is serialized again with a higher limit
            return _load, _pickled([_sendable(outcome) for outcome in outcomes])


class _Raised:
    """An exception, pickled on its own: many classes cannot be made again of the text alone."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        text = "".join(traceback.format_exception_only(self.error)).strip()
        return _load_exception, (*_pickled(self.error), text)


def _is_harmless(value: Any) -> bool:
    """Whether it can certainly be pickled: numbers, strings and arrays of numbers."""
    kind = type(value)
    if kind in _HARMLESS:
        return True
    return (kind.__module__, kind.__name__) == ("numpy", "ndarray") and not value.dtype.hasobject


def _sendable(outcome: Outcome) -> Outcome:
    try:
        _pickled(outcome)
    except Exception as error:
        if _is_too_deep(error):
            raise
        ok, value = outcome
        what = "value" if ok else f"exception ({type(value.error).__name__})"
        return False, TypeError(f"the {what} of a call in a pool cannot be pickled: {error}")
    return outcome


def _is_too_deep(error: Exception) -> bool:
    # cloudpickle makes a PicklingError of it.
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _pickled(value: Any) -> tuple[bytes, list[Any]]:
    """Return what `_load` takes. Raises what pickling the value raises."""
    file = io.BytesIO()
    buffers: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        buffers.append(bytes(raw) if raw.nbytes <= COPIED_BYTES_MAX else buffer)

    cloudpickle.Pickler(file, 5, buffer_callback=keep).dump(value)
    return file.getvalue(), buffers


def _load(pickled: bytes, buffers: list[Any]) -> Any:
    return pickle.loads(pickled, buffers=[memoryview(each).toreadonly() for each in buffers])


def _load_exception(pickled: bytes, buffers: list[Any], text: str) -> Any:
    try:
        return _load(pickled, buffers)
    except Exception as failed:
        return TypeError(f"the exception of a call in a pool ({text}) cannot be loaded: {failed}")
