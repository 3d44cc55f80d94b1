"""However one of several jobs ends, nothing of it stays, and the others go on."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually
from tests.processes.jobs import BIG, Shared, job_rows, nap, nothing_left, square
from tests.processes.joined import Joined

LOADED = textwrap.dedent("""
        group = ray.util.placement_group([{"CPU": 1}], name="group")
        assert group.wait(30)
        actors = [Counter.options(num_cpus=0).remote() for _ in range(2)]
        named = Counter.options(name="named", num_cpus=0).remote()
        ray.get([a.add.remote() for a in [*actors, named]])
        pids = set(ray.get([a.pid.remote() for a in actors]))
        pids |= set(ray.get([pid.options(scheduling_strategy="SPREAD").remote() for _ in "123456"]))
        kept = [ray.put(bytes(2_000_000)) for _ in range(3)]
        spread = [f.options(scheduling_strategy="SPREAD").remote(bytes(300_000)) for _ in range(4)]
        ray.wait(spread, num_returns=4)
        running = [f.remote(0, 1000) for _ in range(50)]
        waiting = [f.remote(ref) for ref in running]
        @ray.remote
        def parent():
            return ray.get([f.remote(0, 1000) for _ in range(5)])
        nested = [parent.remote() for _ in range(3)]
        array = f.map(range(100_000))
        impossible = f.options(num_cpus=64).remote()
        stream = (i for i in range(3))
        say("loaded", *pids)
""")


ENDS = {
    "returns": "",
    "shutdown": "ray.shutdown(); sys.stdin.readline()",
    "raises": "raise SystemExit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": """
        try:
            os.kill(os.getpid(), signal.SIGINT)
            ray.get(running)
        except KeyboardInterrupt:
            pass
""",
    "killed, and a child holds its connection": """
        import subprocess
        if os.fork() == 0:
            sys.stdin.readline()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_however_a_driver_ends_nothing_of_its_job_stays_and_others_notice_nothing(
    start: Start, join: Callable[..., Joined], how: str
) -> None:
    nodes = [{"CPU": 2, "mine": 1}] * 3
    session = start(nodes=nodes, object_store_memory=200_000_000)
    aside = square.options(num_cpus=0, resources={"mine": 0.1})
    mine = Shared.remote()
    assert ray.get(mine.call.remote()) == 1
    # The other job takes all CPUs; this one's tasks, which run all the while, need none.
    other = join(session, LOADED + textwrap.dedent(ENDS[how]))
    results = []
    while len(results) < 30 or 2 not in job_rows(session):
        assert len(results) < 30 or other.process.poll() is None, other.end()
        results.append(ray.get(aside.remote(len(results)), timeout=LIMIT_S))
    loaded, *pids = other.line().split()
    assert loaded == "loaded" and len(pids) > 3
    running = [aside.remote(x) for x in range(200)]
    eventually(lambda: job_rows(session) == {1: True, 2: False})
    assert ray.get(running, timeout=LIMIT_S) == [x * x for x in range(200)]
    assert results == [x * x for x in range(len(results))]
    assert ray.get(mine.call.remote(), timeout=LIMIT_S) == 2
    with pytest.raises(ValueError, match="named"):
        ray.get_actor("named", namespace="job-2")
    del mine, running
    nothing_left(session)
    counts = session.query("event_counts")
    assert counts["job_ended"] == 1
    eventually(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids))


def test_detached_actors_and_groups_outlive_their_job(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(nodes=2, cpus_per_node=2)
    other = join(
        session,
        """
        @ray.remote
        class Store:
            def __init__(self):
                self.refs = [ray.put(bytes(2_000_000)), f.remote(5)]
            def read(self):
                return len(ray.get(self.refs[0])), ray.get(self.refs[1])
            def spawn(self, x):
                return ray.get(f.remote(x))
            def keep(self, refs):
                self.given = refs
            def read_given(self):
                return ray.get(self.given[0])
        store = Store.options(
            name="store", lifetime="detached", namespace="all", max_restarts=1
        ).remote()
        plain = Counter.options(name="plain", namespace="all").remote()
        given = ray.put(1)
        ray.get([store.read.remote(), plain.add.remote(), store.keep.remote([given])])
        ray.util.placement_group([{"CPU": 1}], name="kept", lifetime="detached").wait(30)
        say("made")
        """,
    )
    assert other.line() == "made"
    other.end()
    eventually(lambda: not job_rows(session)[2])
    with pytest.raises(ValueError, match="plain"):
        ray.get_actor("plain", namespace="all")
    store = ray.get_actor("store", namespace="all")
    # What it has made is its own; what its job gave it has gone with the job.
    assert ray.get(store.read.remote(), timeout=LIMIT_S) == (BIG, 5)
    with pytest.raises(ray.exceptions.ObjectLostError):
        ray.get(store.read_given.remote(), timeout=LIMIT_S)
    assert ray.get(store.spawn.remote(6), timeout=LIMIT_S) == 6
    ray.kill(store, no_restart=False)
    # Its class is still known, and what it submits runs.
    again = eventually(lambda: _called(store))
    assert again == (BIG, 5)
    group = ray.util.get_placement_group("kept")
    assert (
        ray.get(
            square.options(
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    group
                )
            ).remote(3),
            timeout=LIMIT_S,
        )
        == 9
    )
    ray.util.remove_placement_group(group)
    ray.kill(store)
    eventually(lambda: session.query("event_counts")["job_ended"] == 2)

    def free() -> bool:
        return all(row[1:] == [0, 0, 0] for row in session.query("stores"))

    eventually(free)


def _called(store: Any) -> Any:
    try:
        return ray.get(store.read.remote(), timeout=LIMIT_S)
    except ray.exceptions.ActorUnavailableError:
        return None


def test_calls_that_a_dead_driver_has_made_do_not_begin(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(cpus_per_node=2, namespace="n")
    shared = Shared.options(name="shared").remote()
    assert ray.get(shared.call.remote()) == 1
    other = join(
        session,
        """
        shared = ray.get_actor("shared")
        first = f.remote(0.5, 1)
        calls = [shared.call.remote(first), *(shared.call.remote(first) for _ in range(20))]
        say("called")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        NAMESPACE="n",
    )
    assert other.line() == "called"
    eventually(lambda: not job_rows(session)[2])
    # Those that had begun have; the rest waited for an input that never came.
    assert ray.get(shared.call.remote(), timeout=LIMIT_S) == 2
    del shared
    nothing_left(session)


def test_two_jobs_with_more_work_than_room_both_make_progress(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(cpus_per_node=2)
    flood = nap.map(range(200_000))
    other = join(
        session,
        """
        for _ in range(3):
            assert ray.get(f.map(range(100)), timeout=30) == list(range(100))
        say("done")
        """,
    )
    assert other.line() == "done"
    assert ray.wait([flood[len(flood) - 1]], timeout=0)[1], "the flood was over too soon"
    assert ray.get(flood[1000], timeout=LIMIT_S) == 1000
    other.end()


def test_the_driver_of_one_of_two_joined_jobs_is_killed(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(nodes=2, cpus_per_node=2)
    first = join(session, LOADED + "sys.stdin.readline()")
    second = join(
        session,
        """
        total = 0
        say("begins")
        while not os.path.exists(os.environ["STOP"]):
            total += 1
            assert ray.get(f.remote(total)) == total
        say("ends", total > 0)
        """,
        STOP=str(Path(session.cluster_address)),
    )
    assert second.line() == "begins"
    assert first.line().startswith("loaded")
    first.process.send_signal(signal.SIGKILL)
    eventually(
        lambda: (
            job_rows(session) == {1: True, 2: False, 3: True}
            or job_rows(session) == {1: True, 2: True, 3: False}
        )
    )
    assert second.process.poll() is None
    second.process.send_signal(signal.SIGKILL)
    eventually(lambda: sum(job_rows(session).values()) == 1)
    nothing_left(session)
