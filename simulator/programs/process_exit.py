"""How a simulated program ends its process at once: `os._exit`, `os.abort`, `os.kill`.

All simulated processes share a real one, which these functions would end. So a call by the
program of a simulated worker or further driver ends its simulated process instead, with the
exit code or signal of a real one: the program stops, its unsent messages are lost, and its
node receives `WorkerDied`. Elsewhere (in the program that started the cluster, in other
threads, in forked children) they remain Python's own.

A signal that a program sends to itself ends its process if no handler is set. A signal with
a handler, and SIGINT, goes to the real process: see `virtual_signals`.
"""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from raytwin.simulator.programs.virtual_program import VirtualProgram

PYTHONS: dict[str, Callable[..., Any]] = {
    "_exit": os._exit,
    "abort": os.abort,
    "kill": os.kill,
    "raise_signal": signal.raise_signal,
}
"""Python's own functions, for callers that are no simulated programs."""

_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
"""Signals whose default action is to do nothing."""
_STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def install() -> None:
    """Replace Python's functions by those of this module."""
    os._exit = exit_process
    os.abort = abort_process
    os.kill = kill_process
    signal.raise_signal = raise_signal


def exit_process(status: int) -> Any:
    """`os._exit`: end the simulated process of the calling program."""
    world = _world()
    if world is None:
        PYTHONS["_exit"](status)
    else:
        world.die(f"exit code {operator.index(status) & 0xFF}")


def abort_process() -> Any:
    """`os.abort`."""
    world = _world()
    if world is None:
        PYTHONS["abort"]()
    else:
        world.die(_killed_by(signal.SIGABRT))


def kill_process(pid: int, number: int) -> None:
    """`os.kill`; for the caller's own PID the same as `raise_signal`."""
    if pid == os.getpid():
        _sent_to_itself(number)
    PYTHONS["kill"](pid, number)


def raise_signal(number: int) -> None:
    """`signal.raise_signal`."""
    _sent_to_itself(number)
    PYTHONS["raise_signal"](number)


def _sent_to_itself(number: int) -> None:
    """End the process of a program that sends itself a signal, if the signal does that.

    Raises RuntimeError for signals that would stop the real process with the simulation.
    """
    world = _world()
    if world is not None and number in _STOPPING and _is_default(world, number):
        raise RuntimeError(
            f"a simulated program cannot stop its process by {signal.Signals(number).name}, in"
            " which all the others run too: let a fault plan pause the worker"
        )
    if world is not None and _ends(world, number):
        world.die(_killed_by(number))


def stand_in(name: str) -> Callable[..., Any]:
    """Return this module's replacement of one of Python's functions."""
    return _STAND_INS[name]


_STAND_INS: dict[str, Callable[..., Any]] = {
    "_exit": exit_process,
    "abort": abort_process,
    "kill": kill_process,
    "raise_signal": raise_signal,
}


def _world() -> VirtualProgram | None:
    """Return the world of the simulated program that calls, None where none does."""
    session = getattr(getcurrent(), "session", None)
    world: VirtualProgram | None = None if session is None else session.world
    # A forked child has a copy of the greenlet.
    return world if world is not None and os.getpid() == world.cluster.pid else None


def _ends(world: VirtualProgram, number: int) -> bool:
    """Whether a signal ends the process of a program that sends it to itself."""
    known = number in signal.valid_signals() and number not in _HARMLESS
    return known and _is_default(world, number)


def _is_default(world: VirtualProgram, number: int) -> bool:
    # The handler of SIGTERM that the driver has set is not a worker's: there the default acts.
    drivers = number == signal.SIGTERM and signal.getsignal(number) == world.cluster.on_sigterm
    return drivers or signal.getsignal(number) == signal.SIG_DFL


def _killed_by(number: int) -> str:
    return f"killed by {signal.Signals(number).name}"
