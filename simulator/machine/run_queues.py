"""A host whose cores have run queues of their own, as Linux has them.

The model
---------
What `host` has in one queue is here in one for each core. A process that wakes, a job whose
owner had none, goes to the core that its owner has run on last; a new one to a core that idles. If
that core is busy, it runs at once if the owner of the running job has used more CPU time than its
own, by more than `GRAIN_S`. Else it waits in the core's queue; the next one there runs at once if
the running job has had its slice. Next is the job whose owner has not run for longest, one that has
never run before all. It stands for what Linux does: there a process that goes to sleep having run
more than others stays behind them until they have caught up.

A job keeps its core until it is done, or is preempted in this way, or until a tick of the clock
finds that it has had its slice and another job waits in the core's queue. An owner that requests a
job when its earlier one ends continues, as in `host`; if others wait, also in the next event of
that instant, as a program does that continues after a turn of its process. A core whose queue is
empty takes the first job of another core's queue, but not one whose owner has run within
`MIGRATION_S`, whose caches are warm there; at a tick it takes any.

So a core may idle for up to a tick while a job waits for another one. Processes that exchange
messages every few microseconds lose up to a third of the time to this; a host with one queue loses
none.

What an owner has used counts from a slice behind the least of the running ones at most: sleep is
no credit for later.

Simplifications: those of `host`. Linux weighs more when it chooses a core: it looks for one that
idles where the cores did little lately, goes to that of the process that wakes it where this one
does nothing else, and balances the queues' loads over time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from math import inf, log2
from typing import Any, NamedTuple

from simpy.events import NORMAL

from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.host import Job

BASE_SLICE_S = 0.0007
"""Linux's ``base_slice_ns`` for one core; it grows with the logarithm of the cores."""
CORES_MAX = 8
"""More cores do not make slices longer."""
MIGRATION_S = 0.0005
"""Linux's ``migration_cost_ns``."""
TICK_S = 0.004
"""The tick of Debian's and Ubuntu's kernels: ``CONFIG_HZ=250``."""
GRAIN_S = 0.0001
"""Owners that have used about the same do not preempt one another. Assumed."""


class _Core:
    """A core and its run queue."""

    __slots__ = ("_idle_since", "_idled_s", "ended", "queue", "running")

    def __init__(self, now: float) -> None:
        self._idle_since = now
        self._idled_s = 0.0
        """Up to when its last job began."""
        self.queue: list[Job] = []
        self.running: Job | None = None
        self.ended: Job | None = None
        """The job that has just ended here, if its owner may continue."""

    @property
    def idle(self) -> bool:
        return self.running is None and self.ended is None

    def idled_s(self, now: float) -> float:
        """Return how long no job has run on the core so far."""
        return self._idled_s + (now - self._idle_since if self.running is None else 0.0)

    def start(self, job: Job, now: float) -> None:
        """Have a job run."""
        self._idled_s = self.idled_s(now)
        self.running = job

    def leave(self, now: float) -> None:
        """Have no job run."""
        self.running = None
        self._idle_since = now


class _Left(NamedTuple):
    """A core that an owner has left."""

    core: _Core
    at: float
    idled_s: float
    """Of the core, until then."""


class RunQueueHost:
    """`cores` equal cores, each with a run queue; a `host.Processor`.

    Raises ValueError unless there is at least one core.
    """

    def __init__(self, env: Clock, cores: int) -> None:
        if cores < 1:
            raise ValueError(f"a host needs at least one core, not {cores}")
        self.cores = cores
        self.slice_s = BASE_SLICE_S * (1 + int(log2(min(cores, CORES_MAX))))
        self.busy_s = 0.0
        self.slowdown = 1.0
        self._env = env
        self._cores = [_Core(env.now) for _ in range(cores)]
        self._core_of: dict[Hashable, _Core] = {}
        """The core that an owner has run on last, or waits for."""
        self._left: dict[Hashable, _Left] = {}
        """The core that an owner has left last."""
        self._used: dict[Hashable, float] = {}
        """CPU seconds of owners."""
        self._floor = 0.0
        """The most that the least of the running owners had used at some time."""
        self._paused: dict[Hashable, list[Job]] = {}
        self._job_callbacks: list[Callable[[Any], None]] = [self._on_job]
        self._ticking = False
        self._ticks = 0
        """The number of the latest tick."""

    def is_free(self, owner: Hashable) -> bool:
        """As `Host.is_free`."""
        core = self._core_of.get(owner)
        return any(each.idle for each in self._cores) if core is None else core.idle

    def idled_s(self, owner: Hashable) -> float:
        """As `Host.idled_s`."""
        left = self._left.get(owner)
        return inf if left is None else left.core.idled_s(self._env.now) - left.idled_s

    def run(self, cpu_s: float, done: Callable[[], None], owner: Hashable | None = None) -> None:
        """As `Host.run`."""
        job = Job(cpu_s * self.slowdown, done, owner)
        self.busy_s += job.remaining_s
        self.put_back(job)

    def withdraw(self, owner: Hashable) -> list[Job]:
        """As `Host.withdraw`."""
        taken = self._take_running(owner)
        self._fill()
        return taken

    def put_back(self, job: Job) -> None:
        """As `Host.put_back`."""
        owner = job.owner
        if owner in self._paused:
            self._paused[owner].append(job)
            return
        core = self._core_of.get(owner)
        if core is not None and owner is not None and core.ended is not None:
            turn_ends = core.ended.turn_ends
            if core.ended.owner == owner and turn_ends > self._env.now:
                core.ended = None
                self._start(core, job)
                job.turn_ends = turn_ends
                return
        self._wake(job)

    def cancel(self, owner: Hashable) -> None:
        """As `Host.cancel`."""
        self._take(owner)
        for table in (self._core_of, self._left, self._used, self._paused):
            table.pop(owner, None)
        self._fill()

    def pause(self, owner: Hashable) -> None:
        """As `Host.pause`."""
        if owner not in self._paused:
            self._paused[owner] = self._take(owner)
            self._fill()

    def resume(self, owner: Hashable) -> None:
        """As `Host.resume`."""
        for job in self._paused.pop(owner, ()):
            self._wake(job)

    # -- a process wakes -----------------------------------------------------

    def _wake(self, job: Job) -> None:
        """Find a core for a job whose owner had none, and start it there, or let it wait."""
        core = self._core_of.get(job.owner)
        if core is None:
            idle = (each for each in self._cores if each.idle)
            core = next(idle, None) or min(self._cores, key=lambda each: len(each.queue))
            self._core_of[job.owner] = core
        self._limit_credit(job.owner)
        now, running = self._env.now, core.running
        if core.idle:
            self._start(core, job)
        elif running is None or running.ends <= now:  # the core is free in a moment
            core.queue.append(job)
        elif self._used_by(running) - self._used[job.owner] > GRAIN_S:
            self._preempt(core)
            self._start(core, job)
        else:
            core.queue.append(job)
            if running.turn_ends <= now:
                self._preempt(core)
                self._start(core, self._pick(core))
        if core.queue:
            self._tick_later()

    def _limit_credit(self, owner: Hashable) -> None:
        """Limit the credit of an owner that has slept, or is new."""
        used = [self._used_by(each.running) for each in self._cores if each.running is not None]
        self._floor = max(self._floor, min(used, default=0.0))
        self._used[owner] = max(self._used.get(owner, 0.0), self._floor - self.slice_s)

    def _used_by(self, running: Job) -> float:
        """Return what the owner of a running job has used up to now, at least."""
        return self._used.get(running.owner, 0.0) + self._env.now - running.began

    # -- the cores -------------------------------------------------------------

    def _start(self, core: _Core, job: Job) -> None:
        """Give `job` a core and a fresh slice."""
        env = self._env
        core.start(job, env.now)
        job.began = env.now
        job.ends = env.now + job.remaining_s
        job.turn_ends = env.now + self.slice_s
        if not job.armed:
            job.armed = True
            job.callbacks = self._job_callbacks
            env.schedule(job, NORMAL, job.remaining_s)

    def _leave(self, core: _Core) -> Job:
        """Take the running job off its core, and return it."""
        job, now = core.running, self._env.now
        assert job is not None
        core.leave(now)
        job.remaining_s = max(0.0, job.ends - now)
        self._left[job.owner] = _Left(core, now, core.idled_s(now))
        self._used[job.owner] = self._used.get(job.owner, 0.0) + now - job.began
        return job

    def _preempt(self, core: _Core) -> None:
        """Have the running job wait."""
        core.queue.append(self._leave(core))

    def _fill(self) -> None:
        """Give idle cores what they may take."""
        for core in self._cores:
            if core.idle:
                self._next(core)

    def _next(self, core: _Core, warm: bool = False) -> None:
        """Start the next job on an idle core: of its own queue, or another's; with `warm`, one
        whose owner has just run elsewhere, too."""
        if core.queue:
            self._start(core, self._pick(core))
            return
        now = self._env.now
        for other in self._cores:
            for job in other.queue:
                left = self._left.get(job.owner)
                if warm or left is None or now - left.at >= MIGRATION_S:
                    other.queue.remove(job)
                    self._core_of[job.owner] = core
                    self._start(core, job)
                    return

    def _pick(self, core: _Core) -> Job:
        """Take the job whose owner has not run for longest from a core's queue, and return it."""
        job = min(core.queue, key=self._left_at)
        core.queue.remove(job)
        return job

    def _left_at(self, job: Job) -> float:
        """Return when a waiting job's owner has left a core last; a new one is before all."""
        left = self._left.get(job.owner)
        return -inf if left is None else left.at

    def _take(self, owner: Hashable) -> list[Job]:
        """Take all jobs of `owner` off cores and queues, and return them."""
        taken = self._take_running(owner)
        for core in self._cores:
            taken += [job for job in core.queue if job.owner == owner]
            core.queue = [job for job in core.queue if job.owner != owner]
        return taken

    def _take_running(self, owner: Hashable) -> list[Job]:
        """Take the jobs of `owner` off their cores, and return them."""
        return [
            self._leave(core)
            for core in self._cores
            if core.running is not None and core.running.owner == owner
        ]

    # -- events ------------------------------------------------------------------

    def _tick_later(self) -> None:
        """Set the clock for the next tick, unless it is set."""
        if not self._ticking:
            self._ticking = True
            self._ticks = max(self._ticks, int(self._env.now / TICK_S)) + 1
            self._env.after(max(0.0, self._ticks * TICK_S - self._env.now), self._on_tick)

    def _on_tick(self) -> None:
        self._ticking = False
        now = self._env.now
        for core in self._cores:
            running = core.running
            if core.queue and running is not None and running.turn_ends <= now < running.ends:
                core.queue.append(self._leave(core))
                self._start(core, self._pick(core))
        for core in self._cores:
            if core.idle:
                self._next(core, warm=True)
        if any(core.queue for core in self._cores):
            self._tick_later()

    def _on_job(self, job: Job) -> None:
        core = next((each for each in self._cores if each.running is job), None)
        if core is None:  # waiting, paused or cancelled
            job.armed = False
        elif job.ends > self._env.now:  # it was preempted or paused meanwhile
            job.callbacks = self._job_callbacks
            self._env.schedule_at(job, job.ends)
        else:
            self._leave(core)
            core.ended = job
            job.done()
            # A program that continues requests its next job only after this event. Where nobody
            # waits, the core is free for it.
            if any(each.queue for each in self._cores):
                self._env.after(0.0, partial(self._give_up, core, job))
            else:
                self._give_up(core, job)

    def _give_up(self, core: _Core, ended: Job) -> None:
        """Have the next job run on a core, unless the owner of the one that has ended continues."""
        if core.ended is ended:
            core.ended = None
            self._next(core)
