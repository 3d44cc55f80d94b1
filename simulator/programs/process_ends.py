"""The end of a simulated process: `os._exit`, signals to itself, exit handlers.

All simulated processes share a real one, which `os._exit`, `os.abort` and signals would end. So
when the program of a simulated worker or further driver calls these, its simulated process ends
instead, with the exit code or signal of a real one: the program stops, its unsent messages are
lost, and its node receives `WorkerDied`. Elsewhere (in the program that started the cluster, in
other threads, in forked children) they remain Python's own. A signal that a program sends to
itself ends its process only if no handler is set.

A signal from outside is sent to the real process: its handler's error is raised in the driver,
as on backends where workers are real processes, and not in the task that happened to run when
the signal arrived.

`atexit.register` puts a handler on the list of the worker whose program calls it. An actor that
exits in good order calls its handlers; a killed worker calls none. Handlers that a module
registers during its import stay with the real process, because all programs share the module.
"""

from __future__ import annotations

import atexit
import operator
import os
import signal
import sys
import weakref
from collections.abc import Callable
from opcode import opmap
from types import CodeType
from typing import Any

from greenlet import GreenletExit, getcurrent

Handler = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_exit, _abort, _kill, _raise_signal = os._exit, os.abort, os.kill, signal.raise_signal
_register, _unregister = atexit.register, atexit.unregister
"""Python's own functions, for callers that are not simulated programs."""

_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
"""Signals whose default action is to do nothing."""
_RAISE = opmap["RAISE_VARARGS"]


def install() -> None:
    """Replace Python's functions by those of this module; does nothing the second time."""
    if atexit.register is register:
        return
    # The first `finalize` registers the one handler of all finalizers: with the real process.
    weakref.finalize(register, int).detach()
    os._exit = exit_process
    os.abort = abort_process
    os.kill = kill_process
    signal.raise_signal = raise_signal
    atexit.register = register
    atexit.unregister = unregister


# -- ends at once ------------------------------------------------------------------


def exit_process(status: int) -> Any:
    """`os._exit`: end the simulated process of the calling program."""
    _end(f"exit code {operator.index(status) & 0xFF}")
    _exit(status)


def abort_process() -> Any:
    """`os.abort`: end the simulated process of the calling program."""
    _end("killed by SIGABRT")
    _abort()


def kill_process(pid: int, number: int) -> None:
    """`os.kill`; for the caller's own PID the same as `raise_signal`."""
    if pid == os.getpid():
        raise_signal(number)
    else:
        _kill(pid, number)


def raise_signal(number: int) -> None:
    """`signal.raise_signal`: end the simulated process, if that is the signal's action."""
    known = number in signal.valid_signals() and number not in _HARMLESS
    if known and signal.getsignal(number) == signal.SIG_DFL:
        _end(f"killed by {signal.Signals(number).name}")
    _raise_signal(number)


def _end(reason: str) -> None:
    """End the simulated process of the calling program; return if no such program calls."""
    session = getattr(getcurrent(), "session", None)
    # A forked child has a copy of the greenlet.
    if session is not None and os.getpid() == session.world.cluster.pid:
        session.world.die(reason)


# -- signals from outside ----------------------------------------------------------


def from_handler(error: BaseException) -> bool:
    """Whether a signal's handler, and not the program, has raised an error."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code_of(handler) for handler in handlers} - {None}
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        last, at = at, at.tb_next
    if type(error) is not KeyboardInterrupt or signal.default_int_handler not in handlers:
        return False
    # Python's own handler has no frame: its error comes from any instruction but the one
    # with which a program raises.
    return last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE


def _code_of(handler: object) -> CodeType | None:
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


# -- exit handlers -----------------------------------------------------------------


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


def register(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """`atexit.register`: call a function when the program's process exits in good order."""
    handlers = _handlers()
    if handlers is None or sys._getframe(1).f_code.co_name == "<module>":
        return _register(function, *args, **kwargs)
    if not callable(function):
        raise TypeError("the first argument must be callable")
    handlers.append((function, args, kwargs))
    return function


def unregister(function: Callable[..., Any], /) -> None:
    """`atexit.unregister`: remove all registrations of a function."""
    handlers = _handlers()
    if handlers is None:
        _unregister(function)
    else:
        handlers[:] = [handler for handler in handlers if handler[0] != function]


def _handlers() -> list[Handler] | None:
    """Return the handlers of the worker whose program runs; None in a driver."""
    session = getattr(getcurrent(), "session", None)
    return None if session is None else session.world.exit_handlers
