"""What the machine can do without a runtime, measured in the same rounds.

A limit tells how much of a figure is the machine's own: nothing that crosses to
another process and back for each task can beat `round_trips_per_s`, nothing that
copies can beat memory. Limits are the crudest program that does a case's least
work, in Python too, and in one thread; batching and several copying threads may
well pass the latter two, and a fraction above 1 says so.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil

from raytwin.scenarios.bench.cases import IN_FLIGHT, filled, pss_mb, repeated_per_s

if TYPE_CHECKING:
    import numpy as np

MESSAGE_BYTES = 64
WINDOW = 100
"""Messages in flight: small enough for a socket's buffer to hold them all."""

_MESSAGE = bytes(MESSAGE_BYTES)

# The other process of a round trip: sends back one message at a time.
_ECHO = """
import os, sys
descriptor, message_bytes = map(int, sys.argv[1:])
while message := os.read(descriptor, message_bytes):
    os.write(descriptor, message)
"""


# Forks a bare interpreter so many times, one after another, and says how long that took.
_FORKS = """
import os, sys, time
begun_s = time.perf_counter()
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
print(time.perf_counter() - begun_s)
"""
FORKS = 50


@dataclass(frozen=True)
class Limit:
    """A figure of the machine."""

    about: str
    unit: str
    measure: Callable[[Limits, float], float]
    """Given the time to take, s."""


class Limits:
    """Measures limits; holds what they need. Use it in a ``with``."""

    def __init__(self) -> None:
        self._ours, theirs = Pipe()  # a pair of Unix sockets
        self._echo = subprocess.Popen(
            [sys.executable, "-c", _ECHO, str(theirs.fileno()), str(MESSAGE_BYTES)],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._arrays: dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ours.close()
        self._echo.kill()
        self._echo.wait()

    @property
    def pid(self) -> int:
        """PID of the process that sends messages back."""
        return self._echo.pid

    def measure(self, name: str, round_s: float) -> float:
        """Return limit `name`, measured for about `round_s` seconds."""
        return LIMITS[name].measure(self, round_s)

    def forget(self) -> None:
        """Give back the memory that copies needed."""
        self._arrays.clear()

    def in_flight(self, messages: int, round_s: float) -> float:
        """Return messages/s to the other process and back, so many at a time."""
        descriptor = self._ours.fileno()

        def operation() -> None:
            for _ in range(messages):
                os.write(descriptor, _MESSAGE)
            missing = messages * MESSAGE_BYTES
            while missing:
                received = os.read(descriptor, missing)
                assert received, "the echo process has ended"
                missing -= len(received)

        return messages * repeated_per_s(operation, round_s)

    def copy_gb_per_s(self, nbytes: int, round_s: float) -> float:
        """Return GB/s of copying between two arrays that both have their pages."""
        if nbytes not in self._arrays:
            self._arrays[nbytes] = filled(nbytes), filled(nbytes)
        import numpy as np  # see `cases.filled`

        source, target = self._arrays[nbytes]
        return nbytes / 1e9 * repeated_per_s(lambda: np.copyto(target, source), round_s)


def _calls_per_s(limits: Limits, round_s: float) -> float:
    def small_value(number: int) -> bytes:
        return b"ok"

    def operation() -> None:
        assert len([small_value(number) for number in range(IN_FLIGHT)]) == IN_FLIGHT

    return IN_FLIGHT * repeated_per_s(operation, round_s)


def _pickles_per_s(limits: Limits, round_s: float) -> float:
    def operation() -> None:
        for _ in range(WINDOW):
            pickle.loads(pickle.dumps(0, protocol=5))

    return WINDOW * repeated_per_s(operation, round_s)


def _forks_per_s(limits: Limits, round_s: float) -> float:
    command = [sys.executable, "-c", _FORKS, str(FORKS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return FORKS / float(done.stdout)


def _interpreter_s(limits: Limits, round_s: float) -> float:
    begun_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"1\n"
    return time.perf_counter() - begun_s


def _interpreter_mb(limits: Limits, round_s: float) -> float:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_mb = pss_mb(psutil.Process(process.pid))
        process.kill()
    return used_mb


LIMITS = {
    "round_trips_per_s": Limit(
        "round trips of 64 bytes between two processes over a socket pair, one at a time",
        "round trips/s",
        lambda limits, round_s: limits.in_flight(1, round_s),
    ),
    "pipelined_per_s": Limit(
        f"the same with {WINDOW} in flight, every message sent and sent back by a call of its own",
        "round trips/s",
        lambda limits, round_s: limits.in_flight(WINDOW, round_s),
    ),
    "pipelined_batches_per_s": Limit(
        f"{IN_FLIGHT:,} such round trips with {WINDOW} in flight",
        "batches/s",
        lambda limits, round_s: limits.in_flight(WINDOW, round_s) / IN_FLIGHT,
    ),
    "calls_per_s": Limit(
        "the same function called in a list comprehension, in one process", "calls/s", _calls_per_s
    ),
    "pickles_per_s": Limit(
        "the number 0 pickled and unpickled, in one process", "pickles/s", _pickles_per_s
    ),
    "copy_1mb_gb_per_s": Limit(
        "one thread copying 1 MB to the same place again and again",
        "GB/s",
        lambda limits, round_s: limits.copy_gb_per_s(10**6, round_s),
    ),
    "copy_256mb_gb_per_s": Limit(
        "one thread copying 256 MB between arrays in memory",
        "GB/s",
        lambda limits, round_s: limits.copy_gb_per_s(256 * 10**6, round_s),
    ),
    "forks_per_s": Limit(
        "forks of a bare Python interpreter that end at once, one after another",
        "forks/s",
        _forks_per_s,
    ),
    "interpreter_s": Limit("starting and ending a bare Python interpreter", "s", _interpreter_s),
    "interpreter_mb": Limit("a bare Python interpreter", "MB", _interpreter_mb),
}
