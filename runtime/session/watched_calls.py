"""A session's API calls, for a world that watches where a program's own code runs.

What the program spends in an API call is the runtime's time, not the program's own: the watcher is
told when a call begins and when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from raytwin.runtime.api.exceptions import GetTimeoutError, RayError
from raytwin.runtime.session.world import BodyWatcher

CALLS = (
    "submit", "map", "get", "get_array", "put", "wait", "wait_again", "next_item",
    "create_actor", "call_actor", "find_actor", "kill_actor", "exit_actor", "this_actor",
    "create_group", "remove_group", "query", "kv_put", "kv_get", "find_task",
    "future", "item_future", "cancel", "job_namespace", "now", "sleep", "compute", "shutdown",
)  # fmt: skip
"""The methods of a session that take time."""

BLOCKING = frozenset(("get", "get_array", "wait", "wait_again", "next_item"))
"""The calls in which a program waits for others; they divide a body's own time into parts."""
SUBMITTING = frozenset(("submit", "map", "create_actor", "call_actor"))
"""The calls by which a program submits tasks and creates actors: its children."""

_AWAITED: dict[str, Callable[[Any, Any], Sequence[Any]]] = {
    "get": lambda given, found: given,
    "get_array": lambda given, found: given,
    "wait": lambda given, found: found[0],
    "wait_again": lambda given, found: found[0] if found is not None else (),
    "next_item": lambda given, found: (found,) if found is not None else (),
}
"""By blocking call: its first argument and its result -> the references that were waited for."""

_RAISING = ("get", "get_array")
"""The calls that raise the errors of what they have waited for."""


def watch_calls(session: Any, watcher: BodyWatcher) -> None:
    """Have the watcher told of each API call of a session's program."""
    watcher.opened(session)
    for name in CALLS:
        setattr(session, name, _watched(name, getattr(session, name), watcher))


def _watched(name: str, call: Callable[..., Any], watcher: BodyWatcher) -> Callable[..., Any]:
    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        own = watcher.leave(name)
        try:
            found = call(*args, **kwargs)
            if own and name in BLOCKING:
                watcher.waited(_AWAITED[name](args[0], found))
            return found
        except GetTimeoutError:
            raise
        except RayError:
            if own and name in _RAISING:
                watcher.waited(args[0])
            raise
        finally:
            if own:
                watcher.back()

    return run
