"""How a simulated program ends its process at once: `os._exit`, `os.abort`, `os.kill`.

Simulated processes share a real one, which these would end, driver and all. So where a
simulated worker's or further driver's program calls them they end the simulated process
it runs in, with the exit code or signal that a real one would have had: nothing more of it
runs, what it has not sent is lost, and its node hears of its end. Anywhere else (in the
program that started the cluster, in other threads, in forked children) they are Python's own.

A signal that a program sends to itself ends its process if nobody handles it. One that is
handled, and SIGINT, remains a signal of the real process: see `signals`.
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
"""What is in the place of each where no simulated program calls."""

_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
"""By default these do nothing."""
_STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def install() -> None:
    """Put the functions of this module in the place of Python's, once."""
    os._exit = exit_process
    os.abort = abort_process
    os.kill = kill_process
    signal.raise_signal = raise_signal


def exit_process(status: int) -> Any:
    """`os._exit`: end the process that the calling program runs in."""
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
    """`os.kill`; to the own process it is `raise_signal`."""
    if pid == os.getpid():
        _sent_to_itself(number)
    PYTHONS["kill"](pid, number)


def raise_signal(number: int) -> None:
    """`signal.raise_signal`."""
    _sent_to_itself(number)
    PYTHONS["raise_signal"](number)


def _sent_to_itself(number: int) -> None:
    """End the process of the program that has sent itself a signal, if that does.

    Raises RuntimeError for what would stop the process, with all that is simulated in it.
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
    """Return what is in the place of one of Python's functions."""
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
    """Whether a signal ends the process of the program that sends it to itself."""
    known = number in signal.valid_signals() and number not in _HARMLESS
    return known and _is_default(world, number)


def _is_default(world: VirtualProgram, number: int) -> bool:
    # The driver's handler of SIGTERM is not a worker's, on which it has its default action.
    drivers = number == signal.SIGTERM and signal.getsignal(number) == world.cluster.on_sigterm
    return drivers or signal.getsignal(number) == signal.SIG_DFL


def _killed_by(number: int) -> str:
    return f"killed by {signal.Signals(number).name}"
