"""A host: CPU cores shared by the processes that run on it.

The model
---------
A *job* is a run of CPU time of one thread. Jobs wait in one FIFO queue for any
of the host's identical cores. A job holds its core until it is done, or until
it has used a quantum in its current *turn* and another job waits: then it goes
to the tail of the queue, with the work it did credited. A job that has run
alone for longer than a quantum yields as soon as a competitor comes. If an owner
asks for a job at the instant at which its earlier job ends, the new job continues
that job's turn, as a thread does that has not given up its core.

So no core idles while a job waits, equal long jobs progress within a quantum
of one another, and a job waits for its first turn at most
``quantum_s * (waiting / cores + 1)``.

Simplifications: switching costs nothing and caches stay warm; there are no
priorities and no wake-up preemption (Linux would favour a process that mostly
sleeps; here it waits for a turn to end); cores are neither pinned nor slowed
by one another. A job is one thread, and an owner may have many: a single-threaded
process asks for one job at a time. A job of no
CPU time needs no core: it is done at the same instant, after what is already
due at that instant.

How it is computed
------------------
A job *is* its SimPy event, due when the job would end without a disturbance,
so a job that is never disturbed costs exactly one event. A disturbance only moves
the job's end later: the event stays where it is and, if it finds the job
unfinished, is scheduled again. Turns are enforced by one timer per host, set
for the oldest turn's end, under the same rule, and only while a job waits.
A job never has two events, and a turn that ends costs none of its own.
An event of a cancelled job stays in the schedule and does nothing when due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL


class _Job(Event):
    """A run of CPU time that an owner asks for; its own completion event.

    `remaining_s` holds while the job has no core, `ends` and `turn_ends` while
    it has one; `armed` says whether the schedule holds the event.
    """

    __slots__ = ("armed", "callbacks", "done", "ends", "owner", "remaining_s", "turn_ends")

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


class _Timer(Event):
    """The end of the oldest turn; one event, scheduled again and again."""

    _ok = True
    _value = None


class Host:
    """`cores` equal cores under round-robin with a quantum of `quantum_s` seconds.

    Raises ValueError unless there is at least one core and the quantum is
    positive.
    """

    def __init__(self, env: Environment, cores: int, quantum_s: float = 0.003) -> None:
        if cores < 1:
            raise ValueError(f"a host needs at least one core, not {cores}")
        if not 0 < quantum_s < inf:
            raise ValueError(f"the quantum must be positive and finite, not {quantum_s}")
        self.cores = cores
        self.quantum_s = quantum_s
        self._env = env
        # Insertion order is the order in which the turns began.
        self._running: dict[_Job, None] = {}
        self._queue: deque[_Job] = deque()
        self._instant: dict[_Job, None] = {}  # jobs of no CPU time, due now
        self._paused: dict[Hashable, list[_Job]] = {}
        self._job_callbacks: list[Callable[[Any], None]] = [self._on_job]
        self._timer_callbacks: list[Callable[[Any], None]] = [self._on_timer]
        self._timer = _Timer(env)
        self._timer_armed = False
        self._handing: _Job | None = None
        """The job whose `done` is being called while others wait."""
        # Core-seconds are the integral of the number of busy cores.
        self._busy_s = 0.0
        self._busy_at = env.now

    # -- used by processes -------------------------------------------------

    def run(self, cpu_s: float, done: Callable[[], None], owner: Hashable | None = None) -> None:
        """Use one core for `cpu_s` seconds of CPU time, then call `done()`.

        `done` is called from an event of its own, never from within `run`. A job
        that `done` asks for with the same `owner` continues the turn; a job with another
        owner waits behind those that wait already.
        Raises ValueError if `cpu_s` is negative, infinite or not a number.
        """
        job = _Job(cpu_s, done, owner)
        if self._paused and owner in self._paused:
            _check(cpu_s)
            self._paused[owner].append(job)
        elif 0 < cpu_s < inf:
            running = self._running
            if self._handing is not None:
                self._run_while_handing(job)
            elif len(running) < self.cores:
                # The same as _start, without the call.
                now = self._env.now
                self._busy_s += len(running) * (now - self._busy_at)
                self._busy_at = now
                running[job] = None
                job.ends = now + cpu_s
                job.turn_ends = now + self.quantum_s
                job.armed = True
                job.callbacks = self._job_callbacks
                self._env.schedule(job, NORMAL, cpu_s)
            else:
                self._queue.append(job)
                # While the timer is set no turn is over before it is due.
                if not self._timer_armed:
                    self._end_turns()
        else:
            _check(cpu_s)
            self._end_now(job)

    def _run_while_handing(self, job: _Job) -> None:
        """Take a job that the `done` of another job, which has just ended, asks for."""
        ended, self._handing = self._handing, None
        assert ended is not None
        if job.owner is not None and job.owner == ended.owner and ended.turn_ends > self._env.now:
            self._account()
            self._start(job)
            job.turn_ends = ended.turn_ends
        else:
            self._handing = ended
            self._queue.append(job)

    def cancel(self, owner: Hashable) -> None:
        """Drop all jobs of `owner`, paused ones too, and never call their `done()`.

        This is the death of a process. The owner is no longer paused either,
        so its name may be used again.
        """
        self._take(owner)
        self._paused.pop(owner, None)
        self._fill()

    def pause(self, owner: Hashable) -> None:
        """Stop the jobs of `owner`, future ones too, until `resume` (SIGSTOP).

        They give up their cores and keep the work they did. A second pause has no effect.
        """
        if owner not in self._paused:
            self._paused[owner] = self._take(owner)
            self._fill()

    def resume(self, owner: Hashable) -> None:
        """Continue the jobs of `owner`, from the tail of the queue (SIGCONT)."""
        for job in self._paused.pop(owner, ()):
            if job.remaining_s > 0:
                self._queue.append(job)
            else:
                self._end_now(job)
        self._fill()

    # -- used by reports ---------------------------------------------------

    @property
    def busy_s(self) -> float:
        """Core-seconds used until now, jobs in progress included."""
        return self._busy_s + len(self._running) * (self._env.now - self._busy_at)

    @property
    def idle(self) -> bool:
        """Whether a core is free."""
        return len(self._running) < self.cores

    @property
    def running(self) -> int:
        """Cores in use."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs that wait for a core; paused ones do not."""
        return len(self._queue)

    def snapshot(self) -> tuple[float, float]:
        """Return (time, `busy_s`) now, for `utilization` later."""
        return self._env.now, self.busy_s

    def utilization(self, since: tuple[float, float]) -> float:
        """Return the fraction of all cores' time in use since that `snapshot`.

        Raises ValueError if no time has passed since.
        """
        then, busy_then_s = since
        elapsed_s = self._env.now - then
        if elapsed_s <= 0:
            raise ValueError("utilization needs time to have passed since the snapshot")
        return (self.busy_s - busy_then_s) / (elapsed_s * self.cores)

    # -- the cores ---------------------------------------------------------

    def _end_now(self, job: _Job) -> None:
        """Have `job`, which needs no more CPU time, done at this instant."""
        self._instant[job] = None
        if not job.armed:
            job.armed = True
            job.callbacks = self._job_callbacks
            self._env.schedule(job, NORMAL, 0)

    def _start(self, job: _Job) -> None:
        """Give `job` a core and a fresh turn; the caller accounts for `busy_s`."""
        now = self._env.now
        self._running[job] = None
        job.ends = now + job.remaining_s
        job.turn_ends = now + self.quantum_s
        if not job.armed:
            job.armed = True
            job.callbacks = self._job_callbacks
            self._env.schedule(job, NORMAL, job.remaining_s)

    def _fill(self) -> None:
        """Give idle cores to waiting jobs, in order."""
        self._account()
        queue = self._queue
        while queue and len(self._running) < self.cores:
            self._start(queue.popleft())
        if queue and not self._timer_armed:
            self._end_turns()

    def _end_turns(self) -> None:
        """Rotate every job whose turn is over while others wait; set the timer if any still do.

        Each rotation begins a fresh turn, so there is at most one per core.
        """
        running, queue, now = self._running, self._queue, self._env.now
        while queue:
            # A job that goes on with an earlier turn is not in order of turns.
            oldest = min(running, key=_turn_ends)
            if oldest.ends <= now:
                # Its own event, due at this instant, frees the core and comes back here.
                return
            if oldest.turn_ends > now:
                self._timer_armed = True
                self._timer.callbacks = self._timer_callbacks
                self._env.schedule(self._timer, NORMAL, oldest.turn_ends - now)
                return
            del running[oldest]
            oldest.remaining_s = oldest.ends - now
            queue.append(oldest)
            self._start(queue.popleft())

    def _take(self, owner: Hashable) -> list[_Job]:
        """Take all live jobs of `owner` off cores and queue, and return them in order."""
        self._account()
        now = self._env.now
        taken = [job for job in self._running if job.owner == owner]
        for job in taken:
            del self._running[job]
            job.remaining_s = max(0.0, job.ends - now)
        taken += [job for job in self._queue if job.owner == owner]
        self._queue = deque(job for job in self._queue if job.owner != owner)
        for job in [job for job in self._instant if job.owner == owner]:
            del self._instant[job]
            taken.append(job)
        return taken

    def _account(self) -> None:
        """Bring `_busy_s` up to date; called before the number of busy cores changes."""
        now = self._env.now
        self._busy_s += len(self._running) * (now - self._busy_at)
        self._busy_at = now

    # -- events ------------------------------------------------------------

    def _on_job(self, job: _Job) -> None:
        running = self._running
        now = self._env.now
        if job in running:
            if job.ends > now:  # it was disturbed on its way
                delay_s = job.ends - now
                job.ends = now + delay_s  # exactly when the event will be due
                job.callbacks = self._job_callbacks
                self._env.schedule(job, NORMAL, delay_s)
                return
            self._busy_s += len(running) * (now - self._busy_at)
            self._busy_at = now
            del running[job]
            if not self._queue:
                job.done()
                return
            # Its owner may continue the turn; else the next job in the queue begins.
            self._handing = job
            job.done()
            self._handing = None
            self._fill()
        elif job in self._instant:
            del self._instant[job]
            job.done()
        else:  # waiting, paused or cancelled
            job.armed = False

    def _on_timer(self, timer: Event) -> None:
        self._timer_armed = False
        self._end_turns()


def _turn_ends(job: _Job) -> float:
    return job.turn_ends


def _check(cpu_s: float) -> None:
    if not 0 <= cpu_s < inf:
        raise ValueError(f"CPU time must be a finite number of seconds >= 0, not {cpu_s}")
