"""A host: CPU cores shared by the processes that run on it.

The model
---------
A *job* is CPU time of one thread. Jobs wait in one FIFO queue for any of the
host's identical cores. A job keeps its core until it is done, or until it has used a
quantum in its current *turn* and another job waits: then it goes to the tail
of the queue with its remaining time. A job that has run alone for longer than
a quantum yields as soon as another job arrives. If an owner requests a job at the
instant at which its earlier job ends, the new job continues that job's turn, as a
thread does that has not given up its core.

So no core idles while a job waits, equal long jobs progress within a quantum
of one another, and a job waits for its first turn at most
``quantum_s * (waiting / cores + 1)``.

Simplifications: context switches cost nothing, there are no priorities, no job is bound to a core,
and cores do not slow one another. `run_queues` has a host that is closer to Linux.

How it is computed
------------------
A job *is* its SimPy event, due when the job would end if it ran on without a break,
so a job that is never preempted or paused costs exactly one event. A break only
delays the job's end: the event stays in the schedule and, if the job is unfinished
when it is due, is scheduled again. One timer per host ends turns; it is set for the
oldest turn's end, and only while a job waits. The event of a cancelled job stays in
the schedule and does nothing when due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from operator import attrgetter
from typing import Any, Protocol

from simpy import Event

from raytwin.simulator.machine.clock import Clock


class Processor(Protocol):
    """The interface of a host for its processes; `Host` documents the methods."""

    @property
    def cores(self) -> int: ...

    def is_free(self, owner: Hashable) -> bool: ...

    def idled_s(self, owner: Hashable) -> float: ...

    def run(
        self, cpu_s: float, done: Callable[[], None], owner: Hashable | None = None
    ) -> None: ...

    def cancel(self, owner: Hashable) -> None: ...

    def pause(self, owner: Hashable) -> None: ...

    def resume(self, owner: Hashable) -> None: ...


class SharedProcessor(Processor, Protocol):
    """The interface of a host for the cluster, and for the interpreters of its processes."""

    busy_s: float
    slowdown: float

    def withdraw(self, owner: Hashable) -> list[Job]: ...

    def put_back(self, job: Job) -> None: ...


class Job(Event):
    """CPU time that an owner has requested; its own completion event.

    `remaining_s` is valid while the job has no core, `began`, `ends` and `turn_ends` while
    it has one; `armed` tells whether the schedule contains the event.
    """

    __slots__ = (
        "armed", "began", "callbacks", "done", "ends", "owner", "remaining_s", "turn_ends"
    )  # fmt: skip

    began: float
    ends: float
    turn_ends: float
    _ok = True
    _value = None

    def __init__(self, cpu_s: float, done: Callable[[], None], owner: Hashable | None) -> None:
        # SimPy's own constructor is skipped: it allocates a list per event.
        self.remaining_s = cpu_s
        self.armed = False
        self.done = done
        self.owner = owner


class Host:
    """`cores` equal cores under round-robin with a quantum of `quantum_s` seconds.

    Raises ValueError unless there is at least one core.
    """

    def __init__(self, env: Clock, cores: int, quantum_s: float = 0.003) -> None:
        if cores < 1:
            raise ValueError(f"a host needs at least one core, not {cores}")
        self.cores = cores
        self.quantum_s = quantum_s
        self.busy_s = 0.0
        """CPU time of all jobs that were requested so far."""
        self.slowdown = 1.0
        """How many times as long jobs take that are requested from now on: the host is slow, or a
        fault slows it down."""
        self._env = env
        self._running: dict[Job, None] = {}
        self._queue: deque[Job] = deque()
        self._paused: dict[Hashable, list[Job]] = {}
        self._job_callbacks: list[Callable[[Any], None]] = [self._on_job]
        self._timer_set = False
        self._ended: Job | None = None
        """The job whose `done` is being called while others wait."""

    def is_free(self, owner: Hashable) -> bool:
        """Whether a job of an owner that has none would start at once."""
        return len(self._running) < self.cores

    def idled_s(self, owner: Hashable) -> float:
        """Return how long the core that an owner has left last has idled since; infinity, as here,
        if the host does not tell its cores apart, or the owner has not run on any."""
        return inf

    def run(self, cpu_s: float, done: Callable[[], None], owner: Hashable | None = None) -> None:
        """Use one core for `cpu_s` seconds of CPU time, then call `done()`.

        `done` is called from an event of its own, never from within `run`. If `done`
        requests a job for the same `owner`, that job continues the turn; a job of another
        owner joins the queue.
        """
        cpu_s *= self.slowdown
        self.busy_s += cpu_s
        self.put_back(Job(cpu_s, done, owner))

    def withdraw(self, owner: Hashable) -> list[Job]:
        """Take the jobs of an owner that have a core off the host, and return them."""
        taken = self._take_running(owner)
        self._fill()
        return taken

    def put_back(self, job: Job) -> None:
        """Have a job run that was withdrawn, for the CPU time that it has left."""
        owner, ended = job.owner, self._ended
        if self._paused and owner in self._paused:
            self._paused[owner].append(job)
        elif ended is not None:
            if owner is not None and owner == ended.owner and ended.turn_ends > self._env.now:
                self._ended = None
                self._start(job)
                job.turn_ends = ended.turn_ends
            else:
                self._queue.append(job)
        elif len(self._running) < self.cores:
            self._start(job)
        else:
            self._queue.append(job)
            # While the timer is set no turn is over before it is due.
            if not self._timer_set:
                self._end_turns()

    def cancel(self, owner: Hashable) -> None:
        """Drop all jobs of a process that has died, paused ones too, without calling `done()`.

        A new process of this name is not paused.
        """
        self._take(owner)
        self._paused.pop(owner, None)
        self._fill()

    def pause(self, owner: Hashable) -> None:
        """Stop the jobs of `owner`, future ones too, until `resume` (SIGSTOP).

        They give up their cores and keep their remaining time. A second pause has no effect.
        """
        if owner not in self._paused:
            self._paused[owner] = self._take(owner)
            self._fill()

    def resume(self, owner: Hashable) -> None:
        """Continue the jobs of `owner`, from the tail of the queue (SIGCONT)."""
        self._queue += self._paused.pop(owner, ())
        self._fill()

    # -- the cores ---------------------------------------------------------

    def _start(self, job: Job) -> None:
        """Give `job` a core and a fresh turn."""
        env = self._env
        now = env.now
        self._running[job] = None
        job.began = now
        job.ends = now + job.remaining_s
        job.turn_ends = now + self.quantum_s
        if not job.armed:
            job.armed = True
            job.callbacks = self._job_callbacks
            env.schedule_at(job, job.ends)

    def _fill(self) -> None:
        """Give idle cores to waiting jobs, in order."""
        queue = self._queue
        while queue and len(self._running) < self.cores:
            self._start(queue.popleft())
        if queue and not self._timer_set:
            self._end_turns()

    def _end_turns(self) -> None:
        """Preempt every job whose turn is over while others wait; set the timer if any still do.

        The next job begins a fresh turn, so there is at most one preemption per core.
        """
        running, queue, now = self._running, self._queue, self._env.now
        while queue:
            # A job that continues an earlier turn may be older than those before it.
            oldest = min(running, key=_TURN_ENDS)
            if oldest.ends <= now:
                # Its own event, due at this instant, frees the core and then calls this method.
                return
            if oldest.turn_ends > now:
                self._timer_set = True
                self._env.after(oldest.turn_ends - now, self._on_timer)
                return
            del running[oldest]
            oldest.remaining_s = oldest.ends - now
            queue.append(oldest)
            self._start(queue.popleft())

    def _take(self, owner: Hashable) -> list[Job]:
        """Take all jobs of `owner` off cores and queue, and return them in order."""
        taken = self._take_running(owner)
        taken += [job for job in self._queue if job.owner == owner]
        self._queue = deque(job for job in self._queue if job.owner != owner)
        return taken

    def _take_running(self, owner: Hashable) -> list[Job]:
        """Take the jobs of `owner` off their cores, and return them in order."""
        taken = [job for job in self._running if job.owner == owner]
        for job in taken:
            del self._running[job]
            job.remaining_s = max(0.0, job.ends - self._env.now)
        return taken

    # -- events ------------------------------------------------------------

    def _on_job(self, job: Job) -> None:
        running = self._running
        if job not in running:  # waiting, paused or cancelled
            job.armed = False
        elif job.ends > self._env.now:  # it was preempted or paused meanwhile
            job.callbacks = self._job_callbacks
            self._env.schedule_at(job, job.ends)
        else:
            del running[job]
            if not self._queue:
                job.done()
                return
            # The owner may continue the turn with a new job; else the next in the queue begins.
            self._ended = job
            job.done()
            self._ended = None
            self._fill()

    def _on_timer(self) -> None:
        self._timer_set = False
        self._end_turns()


_TURN_ENDS: Callable[[Job], float] = attrgetter("turn_ends")
