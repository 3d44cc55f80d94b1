"""`atexit` in virtual time: a handler belongs to the simulated worker that registers it.

All simulated processes share a real one. `atexit.register` puts a handler on the list of the
worker whose program calls it. An actor that exits in good order calls its handlers; a killed
worker calls none. Handlers that a module registers while it is imported stay with the real
process, because all programs share the module.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent

Handler = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_real_register, _real_unregister = atexit.register, atexit.unregister


def install() -> None:
    """Replace the functions of `atexit`; does nothing if that was done before."""
    if atexit.register is not _register:
        # The first `finalize` registers one handler for all: it must be the real process's.
        weakref.finalize(_register, int).detach()
        atexit.register = _register
        atexit.unregister = _unregister


def run(handlers: list[Handler]) -> None:
    """Call handlers, the last first; print the errors that they raise."""
    while handlers:
        function, args, kwargs = handlers.pop()
        try:
            function(*args, **kwargs)
        except GreenletExit:
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())


def _register(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Register a function to be called when the program's process ends in good order."""
    handlers = _of_program()
    if handlers is None or sys._getframe(1).f_code.co_name == "<module>":
        return _real_register(function, *args, **kwargs)
    if not callable(function):
        raise TypeError("the first argument must be callable")
    handlers.append((function, args, kwargs))
    return function


def _unregister(function: Callable[..., Any], /) -> None:
    """Remove all registrations of a function."""
    handlers = _of_program()
    if handlers is None:
        _real_unregister(function)
    else:
        handlers[:] = [handler for handler in handlers if handler[0] != function]


def _of_program() -> list[Handler] | None:
    """Return the handlers of the worker whose program runs; None in a driver."""
    session = getattr(getcurrent(), "session", None)
    return None if session is None else session.world.exit_handlers
