"""One plan on both backends: nodes and workers die, pause and come back, values are right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, PlanError, Step
from raytwin.chaos.faults.recovery_summary import observed
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from tests.processes.helpers import LIMIT_S, eventually

BACKENDS = ["sim", "local"]


@pytest.fixture
def start() -> Iterator[Any]:
    yield lambda backend, **options: ray.init(
        backend=backend, **{"nodes": 3, "cpus_per_node": 2, **options}
    )
    ray.shutdown()


@ray.remote(max_retries=-1)
def double(x: int) -> int:
    ray.sleep(0.01)
    return 2 * x


@ray.remote(max_retries=-1)
def large(x: int) -> bytes:
    ray.sleep(0.01)
    return bytes([x % 256]) * 150_000


def doubles_are_right(count: int = 200) -> None:
    refs = [double.remote(i) for i in range(count)]
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(count)]


def clean(session: Any) -> None:
    assert settled(lambda: at_end(session), ray.sleep) == []


def alive() -> dict[str, bool]:
    return {row["NodeID"]: row["Alive"] for row in ray.nodes()}


def await_nodes(**expected: bool) -> None:
    """Let time pass until the nodes are as expected; names are ``n<number>``."""
    wanted = {name[1:]: state for name, state in expected.items()}
    for _ in range(1000):
        found = alive()
        if all(found.get(node, False) == state for node, state in wanted.items()):
            return
        ray.sleep(0.03)
    raise AssertionError(f"{found} never became {wanted}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_with_everything(start: Any, backend: str) -> None:
    session = start(backend)
    plan = Plan(
        [
            Step("kill", "node:1", 0.1),
            Step("restart", "node:1", None, "node_died:1", 0.05),
            Step("pause", "node:2", None, "node_added:1", 0.05),
            Step("resume", "node:2", None, "node_added:1", 0.15),
            Step("kill", "worker:0.0", 0.15),
            Step("pause", "worker:0.1", 0.2),
            Step("resume", "worker:0.1", 0.3),
            Step("add_node", "cluster", 0.2, parameters={"resources": {"CPU": 1}}),
            Step("remove_node", "node:2", None, "node_added:4"),
        ]
    )
    injector = attach(session, plan)
    doubles_are_right(300)
    await_nodes(n1=True, n2=True, n3=True)
    session.cluster.add_node({"CPU": 1})
    await_nodes(n2=False)
    doubles_are_right(20)
    clean(session)
    injector.stop()
    assert sorted(str(each.step) for each in injector.injections) == sorted(map(str, plan.steps))
    assert not any(each.error for each in injector.injections)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restarted_node_is_empty(start: Any, backend: str) -> None:
    """Its large values are made again; small ones, and its old peers, do not confuse it."""
    session = start(backend)
    on_one = large.options(resources={"node:1": 0.01})
    refs = [on_one.remote(i) for i in range(5)]
    ray.wait(refs, num_returns=5, fetch_local=False)
    session.cluster.restart_node(1)
    values = ray.get(refs, timeout=LIMIT_S)
    assert [bytes(value[:2]) for value in values] == [bytes([i, i]) for i in range(5)]
    del values
    # The second life of the node exchanges large values with a peer that knew the first.
    more = ray.get([on_one.remote(i) for i in range(5)], timeout=LIMIT_S)
    assert [value[0] for value in more] == list(range(5))
    del refs, more
    clean(session)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("times", [3])
def test_a_node_may_die_again_and_again(start: Any, backend: str, times: int) -> None:
    session = start(backend)
    for _ in range(times):
        refs = [double.remote(i) for i in range(50)]
        session.cluster.kill_node(1)
        session.cluster.restart_node(1)
        assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(50)]
        await_nodes(n1=True)
    del refs
    clean(session)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_impossible_step_is_recorded_and_the_plan_goes_on(start: Any, backend: str) -> None:
    session = start(backend)
    plan = Plan(
        [Step("kill", "node:0", 0), Step("kill", "node:7", 0), Step("remove_node", "node:1", 0),
         Step("restart", "node:1", 0.01), Step("pause", "node:2", 0.02),
         Step("resume", "node:2", 0.03)]
    )  # fmt: skip
    injector = attach(session, plan)
    ray.sleep(0.3)
    doubles_are_right(50)
    injector.stop()
    errors = [each.error for each in injector.injections]
    assert "driver" in errors[0] and "no node 7" in errors[1] and "was removed" in errors[3]
    assert [bool(error) for error in errors] == [True, True, False, True, False, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_was_paused_too_long_is_fenced(start: Any, backend: str) -> None:
    """Declared dead, it goes on later and finds that nobody listens; nothing is done twice."""
    session = start(backend, heartbeat_timeout_s=0.5)
    cluster = session.cluster
    kept = [large.options(resources={"node:1": 0.01}).remote(i) for i in range(3)]
    ray.wait(kept, num_returns=3, fetch_local=False)
    refs = [double.remote(i) for i in range(400)]
    ray.sleep(0.1)
    cluster.pause_node(1)
    await_nodes(n1=False)
    cluster.resume_node(1)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(400)]
    # What it held when it was declared dead is made again, elsewhere if need be.
    cluster.restart_node(1)
    await_nodes(n1=True)
    assert [value[0] for value in ray.get(kept, timeout=LIMIT_S)] == [0, 1, 2]
    doubles_are_right(50)
    del kept, refs
    clean(session)


def test_a_fenced_process_leaves(start: Any) -> None:
    session = start("local", heartbeat_timeout_s=0.5)
    cluster = session.cluster
    cluster.pause_node(1)
    eventually(lambda: not alive()["1"])
    cluster.resume_node(1)

    def left() -> bool:
        cluster.poll()
        return "node:1" in cluster.exited

    eventually(left)
    assert cluster.exited["node:1"] == "exit code 0"


def test_messages_of_a_fenced_node_are_refused(start: Any) -> None:
    """In virtual time a resumed node's frames arrive after the news of its death did."""
    session = start("sim", heartbeat_timeout_s=0.5)
    cluster = session.cluster
    # Both run on node 1 when it is stopped; their results are sent when it goes on.
    on_one = double.options(resources={"node:1": 0.5})
    refs = [on_one.remote(1), on_one.remote(2)]
    ray.sleep(0.005)
    cluster.pause_node(1)
    await_nodes(n1=False)
    came = []
    arrive = type(cluster.head).arrive

    def watched(process: Any, source: str, destination: str, messages: list[Any]) -> None:
        if source == "node:1" and process.node != 1:
            came.extend(messages)
        arrive(process, source, destination, messages)

    type(cluster.head).arrive = watched
    try:
        cluster.resume_node(1)
        ray.sleep(0.1)
    finally:
        type(cluster.head).arrive = arrive
    assert "node:1" not in cluster.processes
    assert not came
    cluster.restart_node(1)
    assert ray.get(refs) == [2, 4]


def test_a_late_process_does_not_take_a_nodes_place(start: Any) -> None:
    """The GCS hears of a second incarnation, then of the first: that one has to go."""
    from raytwin.runtime.control.messages import NodeInfo, RegisterNode

    session = start("sim")
    session.cluster.restart_node(1)
    gcs = session.cluster.head.components["gcs"]
    ray.sleep(0.1)
    gcs.handle("node:1", RegisterNode(NodeInfo(1, "host", 1, {"CPU": 9.0}, incarnation=1)))
    assert gcs.nodes.rows[1].incarnation == 2
    assert gcs.nodes.rows[1].alive
    assert gcs.nodes.rows[1].resources["CPU"] == 2.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_actors_process_is_killed(start: Any, backend: str) -> None:
    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Counter:
        count = 0

        def add(self, seconds: float) -> int:
            ray.sleep(seconds)
            self.count += 1
            return self.count

    session = start(backend, nodes=2)
    counters = [Counter.remote() for _ in range(2)]
    ray.get([counter.add.remote(0) for counter in counters])
    injector = attach(session, Plan([Step("kill", "actor:0", 0.25), Step("kill", "actor:3", 0.35)]))
    refs = [counter.add.remote(0.1) for _ in range(5) for counter in counters]
    assert ray.get(refs) == [n for n in range(2, 7) for _ in counters]
    assert [each.error for each in injector.injections] == ["", ""]
    # Where the first one started again decides which of the two the second step found.
    assert sum(row[2] for row in session.query("actors")) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_actor_is_the_same_on_every_backend(start: Any, backend: str) -> None:
    """Counted by node, then by the age of the processes, not by when actors were made."""

    @ray.remote(max_restarts=-1, num_cpus=1)
    class Here:
        def where(self) -> str:
            return ray.get_runtime_context().get_node_id()

    session = start(backend, nodes=3, cpus_per_node=1)
    here = [Here.options(resources={f"node:{n}": 0.1}).remote() for n in (2, 0, 1)]
    assert [ray.get(actor.where.remote()) for actor in here] == ["2", "0", "1"]
    session.cluster.kill_actor(1)
    session.cluster.kill_actor(5)  # round and round
    restarts = {"0": 0, "1": 1, "2": 1}
    for _ in range(1000):
        found = {str(row[1]): row[2] for row in session.query("actors")}
        if found == restarts:
            return
        ray.sleep(0.03)
    raise AssertionError(f"restarts by node are {found}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_without_a_target_fails(start: Any, backend: str) -> None:
    session = start(backend, nodes=2)
    cluster = session.cluster
    with pytest.raises(ValueError, match="no actor is alive"):
        cluster.kill_actor(0)
    cluster.kill_node(1)
    await_nodes(n1=False)
    for fault in (cluster.kill_worker, cluster.pause_worker):
        with pytest.raises(ValueError, match="node 1 has no worker"):
            fault(1, 0)
    injector = attach(session, Plan([Step("kill", "actor:0", 0), Step("kill", "worker:1.0", 0)]))
    ray.sleep(0.3)
    injector.stop()
    assert [bool(each.error) for each in injector.injections] == [True, True]


def test_the_injector_does_not_wait_for_an_actor_of_a_paused_cluster(start: Any) -> None:
    """The paused node would not list its actors until it is resumed, maybe by the next step."""
    session = start("local", nodes=2)
    session.cluster.pause_node(1)
    with pytest.raises(ValueError, match="node 1 is paused"):
        session.cluster.kill_actor(0)
    session.cluster.resume_node(1)
    doubles_are_right(5)


def test_the_head_is_killed_in_virtual_time(start: Any) -> None:
    session = start("sim", nodes=2, gcs_storage="any")
    session.kv_put(b"before", b"value")
    injector = attach(session, Plan([Step("kill", "head", 0.01 * n) for n in range(3)]))
    doubles_are_right(200)
    ray.sleep(1.0)
    session.kv_put(b"key", session.kv_get(b"before"))
    doubles_are_right(50)
    injector.stop()
    assert "" in [each.error for each in injector.injections]
    assert session.query("event_counts")["head_started"] > 0


def test_the_head_is_killed_where_it_starts_again(start: Any, tmp_path: Any) -> None:
    session = start("local", nodes=2, gcs_storage=tmp_path / "gcs.sqlite3")
    injector = attach(session, Plan([Step("kill", "head", 0.1)]))
    before = session.cluster.pids["head"]
    doubles_are_right(200)

    def again() -> bool:
        session.cluster.poll()
        return bool(session.cluster.pids["head"] != before)

    eventually(again)
    session.kv_put(b"key", b"value")
    doubles_are_right(50)
    injector.stop()
    assert [each.error for each in injector.injections] == [""]


@pytest.mark.parametrize("options", [{}, {"gcs_replicas": 2}])
def test_the_head_is_spared_where_the_cluster_would_end_with_it(start: Any, options: Any) -> None:
    session = start("local", nodes=1, **options)
    injector = attach(session, Plan([Step("kill", "head", 0)]))
    ray.sleep(0.2)
    doubles_are_right(5)
    injector.stop()
    (only,) = injector.injections
    assert "the head does not start again" in only.error


def test_latency_in_virtual_time(start: Any) -> None:
    session = start("sim", nodes=2)
    here = double.options(resources={"node:1": 0.01})
    ray.get(here.remote(1))

    def took_s() -> float:
        began_s = ray.now()
        ray.get(here.remote(1))
        return ray.now() - began_s

    usual_s = took_s()
    injector = attach(
        session,
        Plan(
            [Step("latency", "link:1>0", 0, parameters={"latency_ms": 500}),
             Step("latency", "link:1>0", 2, parameters={"latency_ms": 0})]
        ),
    )  # fmt: skip
    ray.sleep(0.01)
    assert took_s() == pytest.approx(usual_s + 0.5, abs=0.01)
    ray.sleep(2)
    assert took_s() == pytest.approx(usual_s, abs=0.01)
    injector.stop()


def test_a_plan_that_a_backend_cannot_follow_changes_nothing(start: Any) -> None:
    session = start("local", nodes=1)
    with pytest.raises(PlanError, match="does not work on local"):
        attach(session, Plan([Step("slow_cores", "node:0", 0, parameters={"factor": 2})]))
    doubles_are_right(5)


def test_the_real_injector_ends_with_its_session(start: Any) -> None:
    session = start("local", nodes=1)
    injector = attach(session, Plan([Step("kill", "node:1", None, "node_added:1")]))
    session.before_shutdown.append(injector.stop)
    ray.shutdown()
    assert not injector._thread.is_alive()
    assert injector.injections == []
    assert time.monotonic() > injector.started_s


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_after_steps_and_steps_on_sets(start: Any, backend: str) -> None:
    session = start(backend)
    plan = Plan(
        [
            Step("restart", "nodes:1,2", None, "taken", 0.1),
            Step("kill", "nodes:1,2", 0.1, name="taken"),
            Step("kill", "node:9", None, "taken", name="failed"),
            Step("kill", "worker:0.0", None, "failed"),
        ]
    )
    injector = attach(session, plan)
    doubles_are_right(100)
    ray.sleep(0.3)
    await_nodes(n1=True, n2=True)
    injector.stop()
    assert [str(each.step) for each in injector.injections] == [
        "kill node:1", "kill node:2", "kill node:9", "kill worker:0.0",
        "restart node:1", "restart node:2",
    ]  # fmt: skip
    assert [each.planned and str(each.planned) for each in injector.injections] == [
        "kill nodes:1,2", "kill nodes:1,2", None, None, "restart nodes:1,2", "restart nodes:1,2"
    ]  # fmt: skip
    assert [bool(each.error) for each in injector.injections][:3] == [False, False, True]
    doubles_are_right(20)
    clean(session)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_head_is_suspended_and_goes_on(start: Any, backend: str) -> None:
    session = start(backend)
    plan = Plan([Step("pause", "head", 0.1), Step("resume", "head", 0.4)])
    injector = attach(session, plan)
    doubles_are_right(200)
    ray.sleep(0.5)
    injector.stop()
    assert [each.error for each in injector.injections] == ["", ""]
    assert all(alive().values())
    clean(session)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_actors_process_is_suspended_and_goes_on(start: Any, backend: str) -> None:
    @ray.remote
    class Counter:
        count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    session = start(backend, nodes=2)
    counter = Counter.remote()
    assert ray.get(counter.add.remote()) == 1
    session.cluster.pause_actor(0)
    late = counter.add.remote()
    assert ray.wait([late], timeout=0.3) == ([], [late])
    doubles_are_right(5)
    session.cluster.resume_actors()
    assert ray.get(late, timeout=LIMIT_S) == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", ["replica:0.1", "scheduler"])
def test_replicas_and_the_scheduler_are_suspended_and_go_on(
    start: Any, backend: str, target: str
) -> None:
    session = start(backend, nodes=2, gcs_replicas=2)
    plan = Plan([Step("pause", target, 0.0, name="p"), Step("resume", target, None, "p", 0.5)])
    injector = attach(session, plan)
    while not injector.injections:
        ray.sleep(0.01)
    session.kv_put(b"key", b"value")
    took_s = injector.clock() - injector.injections[0].clock_s
    assert took_s > 0.4, "the chain waits for its paused member"
    doubles_are_right(20)
    injector.stop()
    assert [each.error for each in injector.injections] == ["", ""]
    assert all(alive().values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scheduler_without_replicas_is_the_head(start: Any, backend: str) -> None:
    session = start(backend, nodes=1)
    Step("pause", "scheduler", 0.0).target.apply(session.cluster, "pause", {})
    with pytest.raises(ValueError, match="no chain"):
        session.cluster.pause_member(0, 0)
    Step("resume", "scheduler", 0.0).target.apply(session.cluster, "resume", {})
    doubles_are_right(5)


def test_slow_cores_take_longer_until_they_are_healed(start: Any) -> None:
    session = start("sim", nodes=2)

    @ray.remote(resources={"node:1": 0.01})
    def work() -> None:
        ray.compute(0.1)

    def took_s() -> float:
        began_s = ray.now()
        ray.get(work.remote())
        return ray.now() - began_s

    took_s()  # its worker starts
    usual_s = took_s()
    slow = Step("slow_cores", "node:1", 0, parameters={"factor": 5})
    injector = attach(session, Plan([slow, Step("heal", "node:1", 2)]))
    ray.sleep(0.01)
    assert took_s() == pytest.approx(5 * usual_s, rel=0.05)
    ray.sleep(2)
    assert took_s() == pytest.approx(usual_s, rel=0.05)
    assert [each.error for each in injector.injections] == ["", ""]


def test_a_clock_that_is_set_back_never_runs_back_in_a_process(start: Any) -> None:
    session = start("sim", nodes=2)

    @ray.remote(resources={"node:1": 0.01})
    class Clock:
        def now(self) -> float:
            return ray.now()

    def ahead_s(clock: Any) -> float:
        return round(ray.get(clock.now.remote()) - ray.now())

    def set_clock(skew_ms: float) -> None:
        step = Step("clock_skew", "node:1", 0, parameters={"skew_ms": skew_ms})
        injector = attach(session, Plan([step]))
        ray.sleep(0.01)
        assert [each.error for each in injector.injections] == [""]

    first = Clock.remote()
    assert ahead_s(first) == 0
    set_clock(7_000)
    assert ahead_s(first) == 7
    set_clock(-5_000)
    assert ahead_s(first) == 7
    session.cluster.restart_node(1)
    ray.sleep(0.5)
    assert ahead_s(Clock.remote()) == -5
    session.cluster.heal_node(1)
    assert ahead_s(Clock.remote()) == 0
    assert all(alive().values())


def test_a_slow_disk_keeps_an_evicted_object_back(start: Any) -> None:
    session = start("sim", nodes=2, object_store_memory=2_000_000)
    on_one = large.options(resources={"node:1": 0.01})

    def took_s() -> float:
        refs = [on_one.remote(i) for i in range(30)]
        began_s = ray.now()
        ray.get(refs)
        return ray.now() - began_s

    usual_s = took_s()
    session.cluster.slow_disk(1, 1e5)
    assert took_s() > 3 * usual_s
    session.cluster.heal_node(1)
    assert took_s() < 2 * usual_s


def test_a_full_disk_takes_no_more_objects(start: Any) -> None:
    session = start("sim", nodes=2, object_store_memory=2_000_000)
    on_one = large.options(resources={"node:1": 0.01})

    def failed() -> int:
        refs = [on_one.remote(i) for i in range(30)]  # 9 MB
        ray.wait(refs, num_returns=len(refs))
        count = 0
        for number, ref in enumerate(refs):
            try:
                assert ray.get(ref)[0] == number
            except ray.exceptions.ObjectStoreFullError as error:
                assert "No space left on device" in str(error)
                count += 1
        return count

    kept = [on_one.remote(i) for i in range(20)]
    assert [value[0] for value in ray.get(kept)] == list(range(20))
    session.cluster.fill_disk(1)
    assert failed() > 0
    assert [value[0] for value in ray.get(kept)] == list(range(20)), "what is there can be read"
    session.cluster.heal_node(1)
    assert failed() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_pressure_on_memory_kills_the_largest_worker(start: Any, backend: str) -> None:
    session = start(backend, nodes=[{"CPU": 2, "memory": 1 << 30}] * 2)
    small, large = (
        _Large.options(memory=nbytes, resources={"node:1": 0.01}).remote(nbytes)
        for nbytes in (1 << 20, 64 << 20)
    )
    assert ray.get([small.size.remote(), large.size.remote()]) == [1 << 20, 64 << 20]
    session.cluster.press_memory(1, 100 << 20)  # there is so much
    refs = [double.remote(i) for i in range(100)]
    assert ray.get(large.size.remote(), timeout=LIMIT_S) == 64 << 20
    pressure = Step("memory_pressure", "node:1", 0.0, parameters={"nbytes": 1 << 30})
    injector = attach(session, Plan([pressure, Step("heal", "node:1", 0.1)]))
    while not injector.finished:
        ray.sleep(0.02)
    injector.stop()
    assert [each.error for each in injector.injections] == ["", ""]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(large.size.remote(), timeout=LIMIT_S)
    assert ray.get(small.size.remote(), timeout=LIMIT_S) == 1 << 20
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(100)]
    assert alive() == {"0": True, "1": True}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_whose_worker_is_killed_for_memory_runs_again(start: Any, backend: str) -> None:
    session = start(backend, nodes=[{"CPU": 1}, {"CPU": 1, "memory": 1 << 30}])
    on_one = double.options(resources={"node:1": 0.01})
    refs = [on_one.remote(i) for i in range(200)]
    ray.get(refs[0], timeout=LIMIT_S)
    pressure = Step("memory_pressure", "node:1", 0.0, parameters={"nbytes": 2 << 30})
    injector = attach(session, Plan([pressure]))
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(200)]
    while "worker_died" not in session.query("event_counts"):
        ray.sleep(0.02)
    injector.stop()
    assert [each.error for each in injector.injections] == [""]


@ray.remote(num_cpus=0)
class _Large:
    def __init__(self, nbytes: int) -> None:
        self.bytes = bytearray(b"\1") * nbytes

    def size(self) -> int:
        return len(self.bytes)


def test_the_scheduler_dies_with_its_process(start: Any) -> None:
    session = start("sim", nodes=2, gcs_replicas=2)
    injector = attach(session, Plan([Step("kill", "scheduler", 0.05)]))
    doubles_are_right(200)
    injector.stop()
    assert [each.error for each in injector.injections] == [""]


def test_a_link_is_named_by_its_ends(start: Any) -> None:
    session = start("sim", nodes=2, gcs_replicas=2)
    targets = ("link:0>1", "link:head>1", "link:1>replica:0.1", "link:replica:0.0>replica:0.1")
    slow = {"latency_ms": 5}
    injector = attach(session, Plan([Step("latency", t, 0, parameters=slow) for t in targets]))
    ray.sleep(0.1)
    assert [each.error for each in injector.injections] == [""] * 4
    doubles_are_right(20)


def test_a_node_that_comes_back_the_moment_it_was_declared_dead_stays(start: Any) -> None:
    """The news of its first process's death may still reach its second one."""
    session = start("sim", nodes=2, heartbeat_timeout_s=0.5)
    back = Step("restart", "node:1", None, "node_died:1")
    injector = attach(session, Plan([Step("kill", "node:1", 0.1), back]))
    ray.sleep(5)
    injector.stop()
    assert alive() == {"0": True, "1": True}
    assert session.query("event_counts")["node_died"] == 1


def test_a_cluster_whose_plan_is_refused_has_ended() -> None:
    plan = Plan([Step("clock_skew", "node:0", 0.0, parameters={"skew_ms": 1})])
    with observed(plan), pytest.raises(PlanError, match="clock_skew"):
        ray.init(backend="local", nodes=1)
    assert not ray.is_initialized()


def test_a_step_looks_at_no_process_but_the_clusters_own(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine's processes there may be thousands, and the step would take as long."""
    session = start("local")
    doubles_are_right(20)
    monkeypatch.delattr(psutil, "process_iter")
    injector = attach(session, Plan([Step("kill", "worker:0.0", 0.0)]))
    doubles_are_right(20)
    injector.stop()
    assert [each.error for each in injector.injections] == [""]
