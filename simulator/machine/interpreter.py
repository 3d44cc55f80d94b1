"""The interpreter of a simulated process that runs a program.

The threads of a program and the turns of its process share one interpreter, as under CPython's
global interpreter lock: one of their jobs has a core, or waits for one, at a time. A job that is
requested meanwhile waits for the interpreter until the one that holds it ends. Every `SWITCH_S`,
as long as any waits, the holder gives the interpreter up if it has a core, and waits itself, behind
all others. A thread that requests its next job at the instant at which its last one ends keeps the
interpreter: a thread gives the interpreter up only to block, or because others have waited for
`SWITCH_S`.

Simplification: all of a program's CPU time needs the interpreter; libraries that release it while
they compute are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.host import SharedProcessor

SWITCH_S = 0.005
"""How long a thread waits for the interpreter before it tells the holder to give it up: the default
interval of `sys.setswitchinterval`."""


class Interpreter:
    """The interpreter of one process, as its `Processor`; all jobs have the same owner."""

    def __init__(self, env: Clock, host: SharedProcessor) -> None:
        self._env = env
        self._host = host
        self._waiting: list[Callable[[], None]] = []
        """Of each job that waits, the oldest first: the call that puts it onto the host."""
        self._holder: Hashable | None = None
        """The owner of the job that is on the host; None: there is none."""
        self._switches = False
        """Whether the holder will be told to give the interpreter up."""

    @property
    def cores(self) -> int:
        return self._host.cores

    def is_free(self, owner: Hashable) -> bool:
        """As `Host.is_free`."""
        return self._holder is None and self._host.is_free(owner)

    def idled_s(self, owner: Hashable) -> float:
        """As `Host.idled_s`."""
        return self._host.idled_s(owner)

    def run(self, cpu_s: float, done: Callable[[], None], owner: Hashable | None = None) -> None:
        """As `Host.run`, with the interpreter."""
        ended = partial(self._end, done)
        if self._holder is None:
            self._holder = owner
            self._host.run(cpu_s, ended, owner)
            return
        self._waiting.append(partial(self._host.run, cpu_s, ended, owner))
        if not self._switches:
            self._switches = True
            self._env.after(SWITCH_S, self._switch)

    def cancel(self, owner: Hashable) -> None:
        """As `Host.cancel`."""
        self._waiting.clear()
        self._holder = None
        self._host.cancel(owner)

    def pause(self, owner: Hashable) -> None:
        """As `Host.pause`."""
        self._host.pause(owner)

    def resume(self, owner: Hashable) -> None:
        """As `Host.resume`."""
        self._host.resume(owner)

    def _end(self, done: Callable[[], None]) -> None:
        holder, self._holder = self._holder, None
        done()
        if self._holder is None and self._waiting:
            # The calling program requests its next job only after this event.
            self._env.after(0.0, partial(self._hand_over, holder))

    def _hand_over(self, owner: Hashable) -> None:
        if self._holder is None and self._waiting:
            self._holder = owner
            self._waiting.pop(0)()

    def _switch(self) -> None:
        """Take the interpreter from the job that holds it, if others wait."""
        if not self._waiting:
            self._switches = False
            return
        self._env.after(SWITCH_S, self._switch)
        if self._holder is None:
            return
        for job in self._host.withdraw(self._holder):
            self._waiting.append(partial(self._host.put_back, job))
            self._waiting.pop(0)()
