"""What a task or call makes its children of, in a form that is the same when it runs again.

The IDs of children depend on it (`ids.of_recipe`), so a parent that does the same again,
on another worker, in a process with other hash seeds, has to get the same bytes. A value's
serialized form is not that: it names the owners of the references inside, has a set's
items in any order, tells a string that is there twice from two equal ones, and classes that
travel by value have an ID that each process draws. So there are two forms here:

* **plain** values (`plain.py`) as `marshal` writes them;
* anything else as cloudpickle has it, without what comes by chance (`canonical.py`).

Values that differ may look alike where telling would cost too much: of one block of more
than `WHOLE_BYTES_MAX` (an array, or bytes) only the length and `SAMPLES` parts of it, first
and last among them, are looked at. What cannot be written a second time, though it could
once, is told by its type alone. Items of a set that differ only far inside may look like
others when they run again: what they are given to then runs twice, as if it were another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.backend.inputs import Input
from runtime.backend.session.canonical import Digest, pickled
from runtime.backend.session.plain import SCALARS, SHORT_BYTES, is_plain, marshalled

_INPUT = "\0input"


def of_arguments(args: Sequence[Any], kwargs: dict[str, Any], nbytes: int) -> bytes:
    """Return what tells a call's arguments; their serialized form has `nbytes` bytes.

    Which objects the inputs are is not in it.
    """
    if not kwargs and SCALARS.issuperset(map(type, args)):
        return marshalled(args)  # as most are
    if Input in map(type, args) or Input in map(type, kwargs.values()):
        args = [_shown(arg) for arg in args]
        kwargs = {name: _shown(arg) for name, arg in kwargs.items()}
    return of_value((tuple(args), kwargs), nbytes)


def of_value(value: Any, nbytes: int) -> bytes:
    """Return what tells a value; its serialized form has `nbytes` bytes."""
    if type(value) is bytes:
        return _digested(b"b", value) if len(value) > SHORT_BYTES else b"b" + value
    # A value with more items than bytes has some in many places: they would be written often.
    if is_plain(value, nbytes):
        return marshalled(value)
    return pickled(value, nbytes)


def _shown(value: Any) -> Any:
    return (_INPUT, value.index) if type(value) is Input else value


def _digested(kind: bytes, block: bytes) -> bytes:
    digest = Digest()
    digest.write(kind)
    digest.write(block)
    return digest.digest()
