"""The values of random programs, and their digests.

Every value is an integer or bytes that only the task's key and inputs decide. An
error that a task raises on purpose (`Boom`) is a value too: `get` of it, or of a
task that had it as an input, gives the same `Boom`.

A value may also be a list of references: a put (`pack`), or the references that a task
was lent and has made (`Call.returns_refs`). Its digest is that of the referenced values,
however deep.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from raytwin.chaos.fuzz.programs.program import Call

CORRECT = 1
"""The outcome of a correct ``tally``, ``gone`` or ``reserved``."""


class Boom(Exception):
    """The exception that tasks raise on purpose."""

    def __init__(self, key: int) -> None:
        super().__init__(key)
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boom) and other.key == self.key

    def __hash__(self) -> int:
        return hash((Boom, self.key))


class Flaky(Exception):
    """The exception after which a task or call is retried, whatever its other retries are."""


def mix(*parts: int) -> int:
    """Return a number that depends on all parts."""
    return zlib.crc32(b",".join(b"%d" % part for part in parts))


def make(number: int, nbytes: int) -> Any:
    """Return the value of a number and a size."""
    return number.to_bytes(8, "big") * (-(-nbytes // 8)) if nbytes else number


def digest(value: Any) -> int:
    """Return a number that depends on the value."""
    if isinstance(value, Boom):
        return mix(7, value.key)
    if isinstance(value, list):
        return mix(8, *map(digest, value))
    if isinstance(value, Items):
        return mix(9, *value.parts)
    return value if isinstance(value, int) else zlib.crc32(value)


def parts_of(call: Call, number: int) -> tuple[Any, ...]:
    """Return the values of a task with several values."""
    return tuple(make(mix(number, part), call.nbytes) for part in range(call.parts))


def yielded(call: Call, parts: Iterable[Any], sleep: Callable[[float], None]) -> Iterator[Any]:
    """Yield the values of a stream, and raise half-way if it fails."""
    for index, part in enumerate(parts):
        if call.fails and index == call.parts // 2:
            raise Boom(mix(call.key, index))
        sleep(call.seconds)
        yield part


def is_unexpected(outcome: Any) -> bool:
    """Whether an outcome is an exception that no program raises on purpose."""
    return isinstance(outcome, Exception) and not isinstance(outcome, Boom)


@dataclass(frozen=True)
class Items:
    """The outcome of a stream: a digest of each item, or the exception in its place."""

    parts: tuple[Any, ...]

    @property
    def unexpected(self) -> list[Exception]:
        """The exceptions among the items."""
        return [part for part in self.parts if is_unexpected(part)]

    def is_right(self, right: Items) -> bool:
        """Whether all items but the exceptions are right.

        An exception may end a stream, early or in place of its end.
        """
        pairs = zip(self.parts, right.parts, strict=False)
        if not all(is_unexpected(mine) or mine == other for mine, other in pairs):
            return False
        more = len(self.parts) - len(right.parts)
        return more == 0 or (more <= 1 and self.parts != () and is_unexpected(self.parts[-1]))


class Stream:
    """The variable of a stream, whose items are values or references to them."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._last: Any = None

    def take(self) -> Any:
        """Return the next item, or the last one again."""
        self._last = next(self._items, self._last)
        return self._last

    def rest(self, outcome: Callable[[Any], Any]) -> list[Items]:
        """Return one outcome for all remaining items.

        It includes the last item taken, which may be the error that ended the stream.
        """
        taken = [] if self._last is None else [self._last]
        outcomes = (outcome(item) for item in (*taken, *self._items))
        return [Items(tuple(o if is_unexpected(o) else digest(o) for o in outcomes))]


def in_place(call: Call, parts: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a stream that runs in place, with its error as the last value."""
    try:
        yield from yielded(call, parts, lambda seconds: None)
    except Boom as boom:
        yield boom
