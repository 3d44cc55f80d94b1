"""The bodies of tasks and calls, for a world that watches where a program's own code runs.

A watched body is the function or method of user code, with the watcher told of its begin and its
end. A generator is watched from item to item, since its body runs while somebody asks for the next
one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from types import GeneratorType
from typing import Any

from raytwin.runtime.session.world import BodyWatcher


def watched(body: Callable[..., Any], watcher: BodyWatcher) -> Callable[..., Any]:
    """Return a function that does the same as `body`, between the watcher's `begin` and `end`."""

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        watcher.begin()
        try:
            value = body(*args, **kwargs)
        except BaseException:
            watcher.end()
            raise
        if type(value) is GeneratorType:
            watcher.yielded()
            return _items(value, watcher)
        watcher.end()
        return value

    return run


def _items(items: Generator[Any, Any, Any], watcher: BodyWatcher) -> Generator[Any, Any, Any]:
    """Yield the items of a body that is a generator, watched while it makes each of them."""
    try:
        while True:
            watcher.begin()
            try:
                item = next(items)
            except StopIteration as end:
                watcher.end()
                return end.value
            except BaseException:
                watcher.end()
                raise
            watcher.yielded()
            yield item
    finally:
        items.close()
