"""A scenario on Ray: in a process of its own, whose `raytwin` is Ray's API.

`run` starts ``python -m raytwin.scenarios.measure.ray_process FD`` with the variables of
`ray_session.environment`, sends it what to run, and passes its progress on until it has sent the
outcome. What it prints, and Ray prints much, is shown only if it ends without one.
Ctrl-C at the terminal is for this process, which interrupts that one and waits until it
has ended its cluster. At the end of the connection, which the death of this process causes too, it
interrupts itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from raytwin.chaos.faults.plan import Plan
from raytwin.runtime.on_ray import NotOnRay, ray_session
from raytwin.scenarios.core.scenario import Outcome, Progress, Request, Silent, UsageError
from raytwin.scenarios.measure import registry
from raytwin.scenarios.measure.under_faults import run_under

FAILED = "failed"
"""The first item of a message that an error has ended the scenario."""
LEAVE_TIMEOUT_S = 60.0
"""How long it may take to end its cluster."""


@dataclass(frozen=True)
class _Failed:
    """The error that ended the scenario."""

    kind: str
    text: str
    trace: str
    usage: bool
    """Whether it is the user's to mend."""


class ScenarioFailed(RuntimeError):
    """The scenario raised in its process; the note is the traceback from there."""


def run(
    scenario: str, request: Request, faults: Plan | None, address: str | None = None
) -> Outcome:
    """Run a scenario on a Ray cluster of its own, or on the one at an address.

    `scenario` is its name, or the path of its file.
    Raises UsageError for what cannot be on Ray, ScenarioFailed for what the scenario raised.
    """
    here, there = Pipe()
    environment = ray_session.environment()
    environment.pop(ray_session.ADDRESS, None)
    if address is not None:
        environment[ray_session.ADDRESS] = address
    with tempfile.TemporaryFile() as printed:
        with there:
            process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()],
                start_new_session=True,
                env=environment,
            )
        try:
            with here:
                here.send((scenario, replace(request, progress=Silent()), faults))
                outcome = _converse(here, request.progress)
        except (EOFError, ConnectionError):
            error = ScenarioFailed(f"the process of {scenario} on Ray has ended without a result")
            printed.seek(0)
            error.add_note(printed.read().decode(errors="replace"))
            raise error from None
        finally:
            _end(process)
    if isinstance(outcome, _Failed):
        if outcome.usage:
            raise UsageError(outcome.text)
        error = ScenarioFailed(f"{outcome.kind}: {outcome.text}")
        error.add_note(outcome.trace)
        raise error
    return outcome


def _converse(connection: Connection, progress: Progress) -> Outcome | _Failed:
    """Pass progress on until the outcome is there. Raises EOFError if the process is gone."""
    while True:
        message: Any = connection.recv()
        if isinstance(message, Outcome):
            return message
        what, *arguments = message
        if what == FAILED:
            return _Failed(*arguments)
        getattr(progress, what)(*arguments)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended its cluster: it has seen the end of the connection."""
    try:
        process.wait(LEAVE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# -- the other end -------------------------------------------------------------------


class _Remote:
    """The progress of the other end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, label: str, total: float | None = None) -> None:
        self._connection.send(("begin", label, total))

    def advance(self, amount: float = 1.0) -> None:
        self._connection.send(("advance", amount))

    def say(self, text: str) -> None:
        self._connection.send(("say", text))


def main() -> None:
    """Run one scenario and send what it came to."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    # A shell starts what is to run in the background with SIGINT ignored, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    name, request, faults = connection.recv()
    ended = threading.Event()
    threading.Thread(target=_watch, args=(connection, ended), daemon=True).start()
    found: Outcome | tuple[Any, ...]
    try:
        request = replace(request, progress=_Remote(connection))
        found = run_under(faults, registry.find(name), request)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        usage = isinstance(error, (UsageError, NotOnRay))
        text = " ".join(str(error).split())
        # Its class would be of this ``__main__``, which the other end does not have.
        found = (FAILED, type(error).__name__, text, traceback.format_exc(), usage)
    finally:
        ended.set()
        ray_session.disconnect()
    with contextlib.suppress(BrokenPipeError):
        connection.send(found)


def _watch(connection: Connection, ended: threading.Event) -> None:
    """Interrupt the scenario when the other process is gone or wants no more."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    if not ended.is_set():
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
