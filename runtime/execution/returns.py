"""What of a task's or call's value goes to its references, by ``num_returns``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from raytwin.runtime.control.messages import TaskSpec

log = logging.getLogger("raytwin")

_END = object()


class Returns(tuple[Any, ...]):
    """The values of a task with several return values."""


def returned(spec: TaskSpec, value: Any) -> Any:
    """Return the value of a task with one reference, `Returns` for any other number.

    Of a generator, which is run here, one reference has the first item. Raises
    TypeError and ValueError if there are not as many values as references.
    """
    if spec.returns == 1:
        return _first(spec, value) if isinstance(value, GeneratorType) else value
    if spec.returns == 0:
        return Returns()
    try:
        items = iter(value)
    except TypeError:
        raise TypeError(
            f"{spec.name}() has num_returns={spec.returns} and returned"
            f" {type(value).__name__}, which is not a sequence"
        ) from None
    values = Returns(items)
    if len(values) != spec.returns:
        raise ValueError(
            f"{spec.name}() has num_returns={spec.returns} and returned {len(values)} values"
        )
    return values


def close(items: Any) -> None:
    """End a generator where it has yielded. Raises what it raises then."""
    if isinstance(items, GeneratorType):
        items.close()


def _first(spec: TaskSpec, items: Iterator[Any]) -> Any:
    """Return the first item; as in Ray the log alone has what comes after it."""
    first = next(items, _END)
    if first is _END:
        raise ValueError(f"{spec.name}() has num_returns=1 and yielded nothing")
    try:
        more = next(items, _END) is not _END
    except Exception:
        log.exception("%s() raised after it had yielded its one return value", spec.name)
    else:
        if more:
            log.error("%s() has num_returns=1 and yielded more, which is lost", spec.name)
    return first
