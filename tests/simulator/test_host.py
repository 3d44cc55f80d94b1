"""The host against its contract, and against a naive simulation of the same rules."""

from __future__ import annotations

import random
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.host import Host
from tests.simulator.recorded_network import Log, at

QUANTUM_S = 0.003
EPS = 1e-9


def steps(env: Clock) -> int:
    """Run `env` until nothing is scheduled; return the number of events."""
    count = 0
    while env.peek() < inf:
        env.step()
        count += 1
    return count


def jobs_of(host: Host) -> tuple[int, int]:
    """Return how many jobs have a core, and how many wait for one."""
    return len(host._running), len(host._queue)


class Naive:
    """The rules of the host with no event but the next: scan everything, move time there."""

    def __init__(self, cores: int, quantum_s: float) -> None:
        self.cores, self.quantum_s, self.now = cores, quantum_s, 0.0
        self.left: dict[int, float] = {}  # CPU time a job still wants
        self.owner: dict[int, int] = {}
        self.queue: list[int] = []
        self.running: list[tuple[int, float]] = []  # with the start of its turn, oldest first
        self.paused: dict[int, list[int]] = {}
        self.done: list[tuple[object, float]] = []

    def advance(self, until: float) -> None:
        while True:
            self.dispatch()
            soonest = min((self.now + self.left[job] for job, _ in self.running), default=inf)
            if self.queue:
                soonest = min(soonest, self.running[0][1] + self.quantum_s)
            step = min(soonest, until) - self.now
            for job, _ in self.running:
                self.left[job] -= step
            self.now = min(soonest, until)
            for job, start in list(self.running):
                if self.left[job] < EPS:
                    self.running.remove((job, start))
                    self.done.append((job, self.now))
            if soonest >= until:
                return

    def dispatch(self) -> None:
        while self.queue and len(self.running) < self.cores:
            self.running.append((self.queue.pop(0), self.now))
        while self.queue and self.running[0][1] + self.quantum_s <= self.now + EPS:
            self.queue.append(self.running.pop(0)[0])
            self.running.append((self.queue.pop(0), self.now))

    def run(self, job: int, cpu_s: float, owner: int) -> None:
        self.left[job], self.owner[job] = cpu_s, owner
        self.paused.get(owner, self.queue).append(job)

    def take(self, owner: int) -> list[int]:
        live = [job for job, _ in self.running] + self.queue
        taken = [job for job in live if self.owner[job] == owner]
        self.running = [turn for turn in self.running if turn[0] not in taken]
        self.queue = [job for job in self.queue if job not in taken]
        return taken

    def cancel(self, owner: int) -> None:
        self.take(owner)
        self.paused.pop(owner, None)

    def pause(self, owner: int) -> None:
        if owner not in self.paused:
            self.paused[owner] = self.take(owner)

    def resume(self, owner: int) -> None:
        self.queue += self.paused.pop(owner, [])


def test_an_undisturbed_job_costs_one_event_and_takes_its_cpu_time() -> None:
    env = Clock()
    host, log = Host(env, 2), Log(env)
    host.run(10.0, log.note("a"))
    host.run(4.0, log.note("b"))
    assert steps(env) == 2
    assert log.entries == [("b", 4.0), ("a", 10.0)]


def test_short_jobs_queue_in_order() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)
    for name in range(5):
        host.run(0.001, log.note(name))
    assert jobs_of(host) == (1, 4)
    env.run()
    assert log.names == [0, 1, 2, 3, 4]
    assert log.times[4] == pytest.approx(0.005)


def test_a_job_that_ran_alone_yields_at_once_and_keeps_its_work() -> None:
    env = Clock()
    host, log = Host(env, 1, QUANTUM_S), Log(env)
    host.run(2.0, log.note("long"))
    at(env, 1.0, lambda: host.run(0.001, log.note("short")))
    env.run()
    assert log.times["short"] == pytest.approx(1.001)
    assert log.times["long"] == pytest.approx(2.001)


def test_a_job_keeps_its_core_for_a_quantum() -> None:
    env = Clock()
    host, log = Host(env, 1, QUANTUM_S), Log(env)
    host.run(2.0, log.note("long"))
    at(env, QUANTUM_S / 3, lambda: host.run(0.001, log.note("short")))
    env.run()
    assert log.times["short"] == pytest.approx(QUANTUM_S + 0.001)


def test_a_job_that_ends_with_its_turn_is_not_sent_back_to_the_queue() -> None:
    env = Clock()
    host, log = Host(env, 1, QUANTUM_S), Log(env)
    for name in range(3):
        host.run(QUANTUM_S, log.note(name))
    env.run()
    assert log.names == [0, 1, 2]
    assert log.times[0] == QUANTUM_S


def test_a_turns_end_that_is_due_before_the_jobs_own_end_leaves_it_alone() -> None:
    env = Clock()
    host, log = Host(env, 1, 0.25), Log(env)
    host.run(0.5, log.note("paused"), "p")
    at(env, 0.25, lambda: host.pause("p"))
    # From here on it ends with its turn, at 0.5625; its event, first due at 0.5, is then
    # scheduled after the turn's end was.
    at(env, 0.3125, lambda: host.resume("p"))
    at(env, 0.375, lambda: host.run(1.0, log.note("long")))
    at(env, 0.375, lambda: host.run(0.125, log.note("short")))
    env.run()
    assert log.entries == [("paused", 0.5625), ("short", 0.9375), ("long", 1.6875)]


def test_a_host_without_cores_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one core"):
        Host(Clock(), 0)


def test_waiting_jobs_go_before_what_a_finished_job_asks_for() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)

    def again() -> None:
        log.note("first")()
        host.run(0.001, log.note("third"))

    host.run(0.001, again)
    host.run(0.001, log.note("second"))
    env.run()
    assert log.names == ["first", "second", "third"]


def test_cancel_frees_the_core_and_forgets_what_waits() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)
    host.run(5.0, log.note("dead"), "victim")
    host.run(5.0, log.note("dead too"), "victim")
    host.run(0.0, log.note("dead at once"), "victim")
    host.run(1.0, log.note("alive"), "other")
    host.cancel("victim")
    assert jobs_of(host) == (1, 0)
    env.run()
    assert log.entries == [("alive", 1.0)]


def test_cancel_ends_a_pause() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)
    host.pause("p")
    host.run(1.0, log.note("dead"), "p")
    host.cancel("p")
    host.run(1.0, log.note("reborn"), "p")
    env.run()
    assert log.entries == [("reborn", 1.0)]


def test_a_paused_owner_consumes_nothing_and_goes_on_later() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)
    host.run(2.0, log.note("long"), "p")
    at(env, 1.0, lambda: host.pause("p"))
    at(env, 1.5, lambda: host.run(1.0, log.note("new"), "p"))
    at(env, 5.0, lambda: host.resume("p"))
    env.run(until=4.9)
    assert jobs_of(host) == (0, 0) and log.entries == []
    env.run()
    assert max(log.times.values()) == pytest.approx(7.0)


def test_a_pause_lets_others_have_the_core() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)
    host.run(1.0, log.note("paused"), "p")
    host.run(1.0, log.note("other"), "q")
    host.pause("p")
    env.run(until=10)
    assert log.entries == [("other", 1.0)]
    host.resume("p")
    env.run()
    assert log.times["paused"] == pytest.approx(11.0)


def test_pausing_at_the_instant_of_the_end_delays_only_done() -> None:
    env = Clock()
    host, log = Host(env, 1), Log(env)
    at(env, 1.0, lambda: host.pause("p"))  # scheduled first, so it comes first
    host.run(1.0, log.note("job"), "p")
    at(env, 3.0, lambda: host.resume("p"))
    env.run()
    assert log.entries == [("job", 3.0)]


jobs = st.lists(
    st.tuples(
        st.floats(0, 0.05),  # arrives
        st.one_of(st.just(0.0), st.floats(1e-6, 0.03)),  # CPU time
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(jobs=jobs, cores=st.integers(1, 4))
def test_work_is_conserved_and_no_core_idles_while_a_job_waits(
    jobs: list[tuple[float, float]], cores: int
) -> None:
    env = Clock()
    host, log = Host(env, cores, QUANTUM_S), Log(env)
    for number, (when, cpu_s) in enumerate(jobs):
        at(env, when, lambda n=number, c=cpu_s: host.run(c, log.note(n)))  # type: ignore[misc]
    while env.peek() < inf:
        env.step()
        running, waiting = jobs_of(host)
        assert waiting == 0 or running == cores
        assert running <= cores
    assert sorted(log.times) == list(range(len(jobs)))
    assert len(log.entries) == len(jobs)
    for number, (when, cpu_s) in enumerate(jobs):
        assert log.times[number] >= when + cpu_s - EPS


@settings(deadline=None)
@given(count=st.integers(1, 12), cores=st.integers(1, 4), length_s=st.floats(0.03, 0.3))
def test_equal_long_jobs_end_within_a_round_of_one_another(
    count: int, cores: int, length_s: float
) -> None:
    env = Clock()
    host, log = Host(env, cores, QUANTUM_S), Log(env)
    for number in range(count):
        host.run(length_s, log.note(number))
    env.run()
    round_s = QUANTUM_S * ceil(count / cores)
    assert max(log.times.values()) - min(log.times.values()) <= round_s + EPS
    # If they divide evenly, none has had to idle.
    if count % cores == 0:
        assert max(log.times.values()) == pytest.approx(length_s * count / cores)


@settings(deadline=None)
@given(
    starts=st.lists(st.floats(0, 0.02), min_size=1, max_size=12),
    cores=st.integers(1, 4),
    when=st.floats(0.02, 0.2),
)
def test_a_short_job_waits_a_bounded_time_among_long_ones(
    starts: list[float], cores: int, when: float
) -> None:
    env = Clock()
    host, log = Host(env, cores, QUANTUM_S), Log(env)
    for start in starts:
        at(env, start, lambda: host.run(10.0, lambda: None))
    env.run(until=when)
    _, waiting = jobs_of(host)
    host.run(1e-6, log.note("short"))
    env.run(until=when + 1)
    assert log.times["short"] <= when + QUANTUM_S * (waiting / cores + 1) + 1e-6 + EPS


def random_history(seed: int) -> list[tuple[float, str, int, float]]:
    """Return (time, operation, owner, CPU time) in order of time; no two coincide."""
    rng = random.Random(seed)
    history = []
    for _ in range(rng.randint(5, 40)):
        operation = rng.choices(("run", "pause", "resume", "cancel"), (8, 2, 2, 1))[0]
        cpu_s = rng.choice((0.0005, 0.005, 0.05)) * rng.uniform(0.5, 2)
        history.append((rng.uniform(0, 0.15), operation, rng.randrange(4), cpu_s))
    history.sort()
    return history + [(1.0 + owner, "resume", owner, 0.0) for owner in range(4)]


def play(seed: int, cores: int) -> list[tuple[object, float]]:
    """Run a random history on a host; return what was done, and when."""
    env = Clock()
    host, log = Host(env, cores, QUANTUM_S), Log(env)

    def perform(number: int, operation: str, owner: int, cpu_s: float) -> None:
        if operation == "run":
            host.run(cpu_s, log.note(number), owner)
        else:
            getattr(host, operation)(owner)

    for number, (when, *what) in enumerate(random_history(seed)):
        at(env, when, lambda n=number, w=what: perform(n, *w))  # type: ignore[misc]
    env.run()
    return log.entries


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32), cores=st.integers(1, 4))
def test_the_host_agrees_with_the_naive_simulation(seed: int, cores: int) -> None:
    naive = Naive(cores, QUANTUM_S)
    for number, (when, operation, owner, cpu_s) in enumerate(random_history(seed)):
        naive.advance(when)
        if operation == "run":
            naive.run(number, cpu_s, owner)
        else:
            getattr(naive, operation)(owner)
    naive.advance(100.0)
    done = play(seed, cores)
    assert [name for name, _ in done] == [name for name, _ in naive.done]
    assert [when for _, when in done] == pytest.approx([when for _, when in naive.done])


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_the_same_history_gives_the_same_times_to_the_last_bit(seed: int) -> None:
    assert play(seed, 2) == play(seed, 2)


def test_turns_do_not_fill_the_schedule() -> None:
    env = Clock()
    host, log = Host(env, 2, QUANTUM_S), Log(env)
    for number in range(4):
        host.run(10.0, log.note(number), "p")
    env.run(until=9.9)  # thousands of turns
    host.cancel("p")
    # Each job has at most one event left, the host one timer, SimPy its `until`.
    assert steps(env) <= 4 + 1 + 1
    assert log.entries == []
