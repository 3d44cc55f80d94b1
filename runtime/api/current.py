"""Which backend the calling code runs on.

A driver or worker of a real backend has one for the whole process. In virtual
time many drivers and workers share a process, so a backend may install a
look-up that tells them apart by the running greenlet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.api import refs
from raytwin.runtime.api.backend import Backend
from raytwin.runtime.api.exceptions import RaySystemError

Connect = Callable[..., Backend]

on_connect: list[Callable[[Any], None]] = []
"""Called with each backend that `init` has connected, before the program goes on."""

_current: Backend | None = None
_lookup: Callable[[], Backend | None] | None = None
_check: Callable[[], None] | None = None
_backends: dict[str, Connect] = {}
_start: Callable[[], Any]
"""Starts a local cluster; `lifecycle` registers it."""


def current() -> Backend:
    """Return the calling code's backend; start a local cluster if there is none."""
    if _lookup is None and _current is not None:
        return _current
    check()
    backend = connected()
    if backend is None:
        _start()
        backend = connected()
        assert backend is not None
    return backend


def present() -> Backend:
    """Return the calling code's backend, to ask it what there is: none is started for that.

    Raises RaySystemError if no cluster is connected.
    """
    check()
    backend = connected()
    if backend is None:
        raise RaySystemError("no cluster is connected: call init() first")
    return backend


def check() -> None:
    """Raise RuntimeError where the calling thread may not use the backend."""
    if _check is not None:
        _check()


def connected() -> Backend | None:
    """Return the calling code's backend, or None."""
    if _lookup is not None:
        found = _lookup()
        if found is not None:
            return found
    return _current


def set_current(
    backend: Backend | None,
    lookup: Callable[[], Backend | None] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Make this the process's backend, with a look-up that goes before it.

    `check` raises RuntimeError on threads that may not use it.
    """
    global _current, _lookup, _check
    _current = backend
    _lookup = lookup
    _check = check


def register_backend(name: str, connect: Connect) -> None:
    """Make ``init(backend=name, **options)`` call `connect(**options)`."""
    _backends[name] = connect


def register_start(start: Callable[[], Any]) -> None:
    """Have `current` call `start` where no cluster is connected."""
    global _start
    _start = start


def backends() -> dict[str, Connect]:
    """Return the backends by name."""
    return dict(_backends)


refs.backend_of_caller = current
