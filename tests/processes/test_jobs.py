"""Several drivers on one cluster of real processes: what each sees, and what it leaves.

The tests' own program starts the cluster and is its first job; the others are programs
that join it, in processes that can be killed.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

import raytwin as ray
from runtime.processes import clusters
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually
from tests.processes.joined import ROOT, Joined

BIG = 2_000_000


@ray.remote
def square(x: int) -> int:
    return x * x


@ray.remote
def nap(x: int) -> int:
    time.sleep(0.001)
    return x


@ray.remote
class Shared:
    def __init__(self) -> None:
        self.calls = 0

    def call(self, seconds: float = 0) -> int:
        self.calls += 1
        time.sleep(seconds)
        return self.calls


@pytest.fixture
def join() -> Iterator[Callable[..., Joined]]:
    """Make `Joined`s, which are killed at the end if they are still there."""
    made: list[Joined] = []

    def make(*args: Any, **environment: str) -> Joined:
        made.append(Joined(*args, **environment))
        return made[-1]

    yield make
    for joined in made:
        joined.process.kill()
        joined.process.communicate()


def job_rows(session: Any) -> dict[int, bool]:
    return {row[0]: row[5] for row in session.query("jobs")}


def nothing_left(session: Any) -> None:
    """Every resource, place and object of the cluster is free again, but for job 1's."""

    def free() -> bool:
        loads = session.query("loads")
        return (
            all(queue == 0 and available == total for _, queue, total, available in loads)
            and all(row[1:] == [0, 0, 0] for row in session.query("stores"))
            and not session.query("groups")
        )

    eventually(free)


# -- joining -----------------------------------------------------------------------


def test_a_program_joins_and_both_go_on(start: Start, join: Callable[..., Joined]) -> None:
    session = start(nodes=2, cpus_per_node=2)
    other = join(
        session,
        """
        say(ray.get_runtime_context().get_job_id(), ray.get_runtime_context().namespace)
        say(sum(ray.get(f.map(range(100)))))
        say(len(ray.get(f.options(scheduling_strategy="SPREAD").remote(bytes(2_000_000)))))
        say(ray.get(f.remote(ray.put(7))), len(ray.nodes()))
        sys.stdin.readline()
        """,
    )
    assert other.line() == "02000000 job-2"
    assert other.line() == "4950"
    assert other.line() == "2000000"
    assert other.line() == "7 2"
    assert ray.get(square.map(range(10))) == [x * x for x in range(10)]
    assert ray.get_runtime_context().get_job_id() == "01000000"
    assert job_rows(session) == {1: True, 2: True}
    other.tell("done")
    other.end()
    eventually(lambda: job_rows(session) == {1: True, 2: False})
    nothing_left(session)
    assert ray.get(square.remote(5)) == 25


def test_auto_and_the_environment_find_the_newest_cluster(
    start: Start,
    join: Callable[..., Joined],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Others may run on this machine, and be newer.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    session = start(cpus_per_node=1)
    assert join(session, "say(session.cluster_address)", CLUSTER="auto").line() == (
        session.cluster_address
    )
    code = "import raytwin as ray; print(ray.init().cluster_address)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAYTWIN_ADDRESS": session.cluster_address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert found.stdout.strip() == session.cluster_address, found.stderr


def test_the_token_is_in_a_file_of_the_user_alone_and_goes_with_the_cluster(start: Start) -> None:
    session = start(cpus_per_node=1)
    [(path, cluster)] = [
        entry for entry in clusters.running() if entry[1].address == session.cluster_address
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    shown = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert cluster.token not in shown and cluster.door not in shown
    ray.shutdown()
    assert not path.exists()
    with pytest.raises(ConnectionError, match="no raytwin cluster"):
        ray.init(address=session.cluster_address)


def test_a_wrong_token_is_turned_away_and_the_cluster_goes_on(start: Start) -> None:
    session = start(cpus_per_node=1)
    [cluster] = [c for _, c in clusters.running() if c.address == session.cluster_address]
    cluster.token = "00" * 32
    clusters.write(cluster)
    code = "import os, raytwin as ray; ray.init(address=os.environ['CLUSTER'])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTER": session.cluster_address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "ConnectionError: cannot join" in found.stderr
    assert ray.get(square.remote(3)) == 9
    assert job_rows(session) == {1: True}


def test_modules_and_the_directory_are_the_joining_program_s(
    start: Start, join: Callable[..., Joined], tmp_path: Path
) -> None:
    session = start(nodes=2, cpus_per_node=1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "only_here.py").write_text(f"NAME = {name!r}\n")
    script = """
        @ray.remote
        def look():
            import only_here
            return only_here.NAME, os.getcwd()
        os.chdir(os.environ["DIRECTORY"])
        sys.path.insert(0, os.environ["DIRECTORY"])
        session.setup = __import__("runtime.backend.job_setup", fromlist=["x"]).describe()
        refs = [look.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
        say({(name, os.path.basename(path)) for name, path in ray.get(refs)})
        """
    for name in ("one", "two"):
        assert join(session, script, DIRECTORY=str(tmp_path / name)).line() == str({(name, name)})


def test_the_cluster_ends_and_a_joined_program_hears_of_it(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(cpus_per_node=1)
    other = join(
        session,
        """
        say("in")
        try:
            ray.get(f.remote(1, 1000))
        except ray.exceptions.RaySystemError as error:
            say(error)
        """,
    )
    assert other.line() == "in"
    ray.shutdown()
    assert "the cluster is gone" in other.line()


# -- isolation ---------------------------------------------------------------------


def test_an_object_of_another_job_is_refused_with_the_reason(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(nodes=2, cpus_per_node=2)
    refs = [ray.put(1), ray.put(bytes(BIG)), square.remote(4)]
    ray.wait(refs, num_returns=3)
    other = join(
        session,
        """
        from runtime.api.refs import ObjectRef
        @ray.remote
        def read(refs):
            return ray.get(refs[0])
        for copied in sys.stdin.readline().split():
            for use in (
                lambda ref: ray.get(ref, timeout=20),
                lambda ref: ray.get(f.remote(ref), timeout=20),
                lambda ref: ray.get(read.remote([ref]), timeout=20),
                lambda ref: Counter.remote(ref),
            ):
                try:
                    say("read", use(ObjectRef(bytes.fromhex(copied), session)))
                except ray.exceptions.ObjectOfOtherJobError as error:
                    say(str(error).strip().splitlines()[-1])
            ray.cancel(ObjectRef(bytes.fromhex(copied), session), force=True)
        """,
    )
    other.tell(" ".join(ref.hex() for ref in refs))
    for _ in range(4 * len(refs)):
        assert "belongs to job 1, and job 2 has no access" in other.line()
    other.end()
    assert [ray.get(refs[0]), len(ray.get(refs[1])), ray.get(refs[2])] == [1, BIG, 16]


def test_actors_without_a_name_are_their_job_s_and_named_ones_are_their_namespace_s(
    start: Start, join: Callable[..., Joined], tmp_path: Path
) -> None:
    session = start(cpus_per_node=4, namespace="mine")
    unnamed = Shared.remote()
    named = Shared.options(name="counter").remote()
    elsewhere = Shared.options(name="counter", namespace="elsewhere").remote()
    assert ray.get([unnamed.call.remote(), named.call.remote(), elsewhere.call.remote()]) == [1] * 3
    handle = tmp_path / "handle"
    handle.write_bytes(cloudpickle.dumps(unnamed))
    script = """
        import cloudpickle
        copied = cloudpickle.load(open(os.environ["HANDLE"], "rb"))
        try:
            say(ray.get(copied.call.remote(), timeout=20))
        except ray.exceptions.ActorOfOtherJobError as error:
            say(error)
        ray.kill(copied)
        try:
            say(ray.get(ray.get_actor("counter").call.remote()))
        except ValueError as error:
            say(error)
        counter = ray.get_actor("counter", namespace="elsewhere")
        @ray.remote
        def call(actor):
            return ray.get(actor.call.remote())
        say(ray.get(call.remote(counter)), ray.get_runtime_context().namespace)
        """
    other = join(session, script, HANDLE=str(handle), NAMESPACE="mine")
    assert "belongs to job 1 and has no name" in other.line()
    assert other.line() == "2"
    assert other.line() == "2 mine"
    other.end()
    other = join(session, script, HANDLE=str(handle))
    assert "belongs to job 1 and has no name" in other.line()
    assert "counter" in other.line()
    assert other.line() == "3 job-3"
    other.end()
    assert ray.get([unnamed.call.remote(), named.call.remote()]) == [2, 3]


def test_equal_functions_and_equal_names_of_two_jobs_are_not_mixed_up(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(cpus_per_node=2)
    script = """
        import builtins
        builtins.marker = getattr(builtins, "marker", []) + [os.environ["WHO"]]
        @ray.remote
        def who(name):
            import builtins
            builtins.marker = getattr(builtins, "marker", []) + [name]
            return sorted(set(builtins.marker))
        mine = Counter.options(name="same").remote()
        say(ray.get([who.remote(os.environ["WHO"]) for _ in range(20)])[-1])
        say(ray.get(ray.get_actor("same").add.remote(int(os.environ["WHO"]))))
        sys.stdin.readline()
        """
    others = [join(session, script, WHO=str(number)) for number in (1, 2)]
    for number, other in enumerate(others, 1):
        # Nothing that the other job's tasks left in their processes is seen.
        assert other.line() == str([str(number)])
        assert other.line() == str(number)


# -- ends --------------------------------------------------------------------------

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
