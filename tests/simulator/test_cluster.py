"""The ``sim`` backend: programs in virtual time, from `init` to `shutdown`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import raytwin as ray
from runtime.api.exceptions import GetTimeoutError, ObjectLostError, RaySystemError, RayTaskError
from runtime.backend.journal import read
from runtime.control.messages import AssignTasks
from runtime.control.policies import POLICIES
from simulator.costs import Profile, RoleCost, load_profile
from tests.simulator.programs import MIXED, compute, increment, mixed, nested, size, sleep, three

LATENCY_S = 0.001
BANDWIDTH = 1e9


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    ray.shutdown()


def start(**options: Any) -> Any:
    """Start a cluster whose control plane is as that of the profile `paper`."""
    return ray.init(backend="sim", **options)


@pytest.fixture
def free(tmp_path: Path) -> str:
    """A profile in which nothing costs anything but latency and bandwidth."""
    role = RoleCost()
    profile = Profile(
        name="free", source="made up", cores=2, latency_s=LATENCY_S, bandwidth=BANDWIDTH,
        loopback_latency_s=0.0, loopback_bandwidth=1e30, memory_bandwidth=1e30,
        start_worker_s=0.0, head=role, node=role, worker=role, driver=role,
    )  # fmt: skip
    path = tmp_path / "free.json"
    path.write_bytes(msgspec.json.encode(profile))
    return str(path)


def run_mixed(journal: Path, **options: Any) -> bytes:
    start(nodes=4, cpus_per_node=2, journal=journal, **options)
    assert mixed() == MIXED
    ray.shutdown()
    return journal.read_bytes()


# -- one seed is one execution ---------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_two_runs_with_one_seed_are_one_execution(policy: str, tmp_path: Path, seed: int) -> None:
    first = run_mixed(tmp_path / "first", policy=policy, seed=seed)
    second = run_mixed(tmp_path / "second", policy=policy, seed=seed)
    assert len(first) > 100_000
    assert first == second


def placements(journal: Path) -> list[tuple[str, int]]:
    return [
        (to, sum(spec.count for spec in message.tasks))
        for turn in read(journal)
        for to, messages in turn.outputs
        for message in messages
        if isinstance(message, AssignTasks)
    ]


def test_another_seed_draws_other_nodes(tmp_path: Path, seed: int) -> None:
    run_mixed(tmp_path / "one", policy="random", seed=seed)
    run_mixed(tmp_path / "other", policy="random", seed=seed + 1)
    one, other = placements(tmp_path / "one"), placements(tmp_path / "other")
    assert one and other and one != other


def test_nodes_that_share_a_host_get_the_same_results(tmp_path: Path, seed: int) -> None:
    first = run_mixed(tmp_path / "first", nodes_per_host=2, cores_per_host=1, seed=seed)
    second = run_mixed(tmp_path / "second", nodes_per_host=2, cores_per_host=1, seed=seed)
    assert first == second


# -- virtual time ----------------------------------------------------------------


def elapsed_s(action: Callable[[], Any]) -> float:
    began_s = ray.now()
    action()
    return ray.now() - began_s


def test_sleep_and_compute_take_what_they_say(free: str) -> None:
    start(profile=free)
    assert ray.now() == ray.now()
    assert elapsed_s(lambda: ray.sleep(1.5)) == pytest.approx(1.5, rel=1e-9)
    assert elapsed_s(lambda: ray.compute(0.25)) == pytest.approx(0.25, rel=1e-9)
    assert elapsed_s(lambda: ray.sleep(0)) == 0


def test_an_hour_passes_at_once(free: str) -> None:
    start(profile=free)
    began_s = time.monotonic()
    assert elapsed_s(lambda: ray.get(sleep.remote(3600.0))) == pytest.approx(3600, abs=0.01)
    # A ratio with much room: a second of the machine is many minutes of virtual time.
    assert time.monotonic() - began_s < 3600 / 10


@pytest.mark.parametrize(("cores", "expected_s"), [(1, 2.0), (2, 1.0)])
def test_computing_tasks_share_their_host(free: str, cores: int, expected_s: float) -> None:
    start(nodes=1, cpus_per_node=2, profile=free, cores_per_host=cores)
    took_s = elapsed_s(lambda: ray.get([compute.remote(1.0) for _ in range(2)]))
    assert took_s == pytest.approx(expected_s, rel=0.01)


@pytest.mark.parametrize(("nodes_per_host", "expected_s"), [(1, 1.0), (4, 4.0)])
def test_nodes_of_one_host_share_its_cores(
    free: str, nodes_per_host: int, expected_s: float
) -> None:
    start(nodes=4, cpus_per_node=1, profile=free, nodes_per_host=nodes_per_host, cores_per_host=1)
    on_each = [
        compute.options(num_cpus=0, resources={f"node:{n}": 0.1}).remote(1.0) for n in range(4)
    ]
    assert elapsed_s(lambda: ray.get(on_each)) == pytest.approx(expected_s, rel=0.02)


def test_sleeping_tasks_share_nothing(free: str) -> None:
    start(nodes=1, cpus_per_node=8, profile=free, cores_per_host=1)
    took_s = elapsed_s(lambda: ray.get([sleep.remote(1.0) for _ in range(8)]))
    assert took_s == pytest.approx(1.0, rel=0.01)


def test_cpus_bound_how_many_tasks_run(free: str) -> None:
    start(nodes=1, cpus_per_node=2, profile=free)
    took_s = elapsed_s(lambda: ray.get([sleep.remote(1.0) for _ in range(8)]))
    assert took_s == pytest.approx(4.0, rel=0.02)


def fetch_s(profile: str, nbytes: int) -> float:
    """Return how long a task takes on node 1 that needs a blob of node 0."""
    start(nodes=2, cpus_per_node=1, profile=profile)
    there = size.options(resources={"node:1": 0.1})
    blob = ray.put(ray.Blob(nbytes))
    # Makes the worker and brings the function there, which is not to be timed.
    ray.get(there.remote(ray.put(ray.Blob(200_000))))
    began_s = ray.now()
    assert ray.get(there.remote(blob)) == nbytes
    took_s = ray.now() - began_s
    ray.shutdown()
    return took_s


def test_a_blob_takes_its_bytes_by_the_bandwidth(free: str) -> None:
    small, large = fetch_s(free, 1_000_000), fetch_s(free, 3_000_000_000)
    assert large - small == pytest.approx((3_000_000_000 - 1_000_000) / BANDWIDTH, rel=1e-6)
    # What is left are latencies: of messages, of the request, of the last byte.
    hops = (small - 1_000_000 / BANDWIDTH) / LATENCY_S
    assert 3 <= hops <= 12


def test_two_blobs_share_the_bandwidth(free: str) -> None:
    start(nodes=3, cpus_per_node=1, profile=free)
    nbytes = 1_000_000_000
    blobs = [ray.put(ray.Blob(nbytes)) for _ in range(2)]
    tasks = [size.options(resources={f"node:{n}": 0.1}) for n in (1, 2)]
    took_s = elapsed_s(
        lambda: ray.get([task.remote(blob) for task, blob in zip(tasks, blobs, strict=True)])
    )
    # Both leave through the network card of node 0.
    assert took_s == pytest.approx(2 * nbytes / BANDWIDTH, rel=0.05)


def test_blobs_take_no_memory_and_fill_the_store() -> None:
    start(object_store_memory=10_000_000)
    kept = ray.put(ray.Blob(8_000_000))
    with pytest.raises(ray.exceptions.ObjectStoreFullError, match="no room for 12,000,"):
        ray.put(ray.Blob(12_000_000))
    assert ray.get(kept) == ray.Blob(8_000_000)
    del kept
    ray.sleep(1)
    assert ray.get(ray.put(ray.Blob(8_000_000))).nbytes == 8_000_000


def disk_of(session: Any, node: int = 0) -> tuple[int, int]:
    """Return (bytes on a node's disk, bytes written to it so far)."""
    store = session.cluster.stores[node]
    assert store.used <= store.capacity
    return store.disk_used, store.spilled_bytes


def test_what_does_not_fit_goes_to_disk_and_comes_back(free: str) -> None:
    session = start(object_store_memory=10_000_000, profile=free)
    values = [(n, ray.Blob(3_000_000)) for n in range(20)]
    refs = [ray.put(value) for value in values]
    on_disk, written = disk_of(session)
    assert on_disk == written and 50_000_000 < on_disk <= 60_100_000
    # One at a time: what a program looks at does not leave.
    assert all(ray.get(refs[n]) == values[n] for n in (*range(20), *reversed(range(20))))
    # What was written once is clean: it leaves memory without being written again.
    assert disk_of(session)[1] <= 60_100_000
    del refs
    ray.get(ray.put(None))
    ray.sleep(1)
    assert disk_of(session)[0] == 0


def test_the_disk_takes_its_time(free: str, tmp_path: Path) -> None:
    def put_five() -> None:
        refs = [ray.put(ray.Blob(8_000_000)) for _ in range(5)]
        assert len(refs) == 5

    slow = json.loads(Path(free).read_text()) | {"disk_bandwidth": 8e6}
    path = tmp_path / "slow-disk.json"
    path.write_text(json.dumps(slow))
    start(object_store_memory=10_000_000, profile=str(path))
    # Four have to leave, one after another, before the fifth is there.
    assert elapsed_s(put_five) == pytest.approx(4.0, rel=0.05)


def test_inputs_larger_than_memory_reach_their_tasks(free: str) -> None:
    session = start(nodes=2, cpus_per_node=2, object_store_memory=10_000_000, profile=free)
    blobs = [ray.put(ray.Blob(2_000_000 + n)) for n in range(20)]
    pair = ray.remote(lambda a, b: a.nbytes + b.nbytes)
    far = pair.options(resources={"node:1": 0.01})
    for task in (pair, far, pair):
        refs = [task.remote(blobs[n], blobs[-n]) for n in range(20)]
        expected = [4_000_000 + n + (-n) % 20 for n in range(20)]
        assert ray.get(refs) == expected
    # Copies are dropped, not written.
    assert disk_of(session, 1)[1] == 0


class Adder:
    """Adds sizes up."""

    def __init__(self, *values: Any) -> None:
        self.nbytes = sum(value.nbytes for value in values)

    def add(self, *values: Any) -> int:
        ray.sleep(0.01)
        return self.nbytes + sum(value.nbytes for value in values)


def test_actors_get_inputs_that_had_to_make_room_while_they_waited(free: str) -> None:
    session = start(nodes=2, cpus_per_node=2, object_store_memory=10_000_000, profile=free)
    blobs = [ray.put(ray.Blob(2_000_000 + n)) for n in range(12)]
    adder = ray.remote(Adder)
    adders = [
        adder.options(resources={f"node:{n % 2}": 0.01}).remote(blobs[n], blobs[-1 - n])
        for n in range(3)
    ]
    refs = [
        each.add.remote(blobs[n], blobs[(3 * n + 5) % 12]) for n in range(12) for each in adders
    ]
    expected = [8_000_011 + n + (3 * n + 5) % 12 for n in range(12) for _ in adders]
    assert ray.get(refs) == expected
    for number in range(2):
        scheduler = session.cluster.processes[f"node:{number}"].components[f"node:{number}"]
        assert not scheduler.inputs._claims and not scheduler.objects.eviction._claims


# -- waiting ---------------------------------------------------------------------


def test_get_times_out_in_virtual_time(free: str) -> None:
    start(profile=free)
    ref = sleep.remote(10.0, "late")
    began_s = ray.now()
    with pytest.raises(GetTimeoutError, match=r"1 of 1 values .* after 2.5 s"):
        ray.get(ref, timeout=2.5)
    assert ray.now() - began_s == pytest.approx(2.5, rel=1e-6)
    assert ray.get(ref, timeout=20.0) == "late"


def test_get_times_out_within_a_task(free: str) -> None:
    start(profile=free)

    @ray.remote
    def impatient() -> float:
        began_s = ray.now()
        with pytest.raises(GetTimeoutError):
            # Longer than a cluster may stand still: who waits with a timeout does not.
            ray.get(sleep.remote(1e6), timeout=500.0)
        return ray.now() - began_s

    assert ray.get(impatient.remote()) == pytest.approx(500, rel=1e-3)


def test_wait_returns_what_is_ready_in_the_order_given(free: str) -> None:
    start(nodes=1, cpus_per_node=4, profile=free)
    refs = [sleep.remote(seconds) for seconds in (3.0, 1.0, 2.0, 4.0)]
    ready, rest = ray.wait(refs, num_returns=2)
    assert ready == [refs[1], refs[2]]
    assert rest == [refs[0], refs[3]]
    assert ray.wait(refs, num_returns=4, timeout=0) == ([refs[1], refs[2]], [refs[0], refs[3]])
    took_s = elapsed_s(lambda: ray.wait(refs, num_returns=4, timeout=0.5))
    assert took_s == pytest.approx(0.5, rel=1e-3)
    assert ray.wait(refs, num_returns=4) == (refs, [])


def test_several_values_from_one_task() -> None:
    start()
    one, blob, text = three.remote()
    assert ray.get([text, one, blob]) == ["three", 1, ray.Blob(3_000_000)]


def test_nested_tasks_do_not_deadlock_one_cpu(free: str) -> None:
    start(nodes=1, cpus_per_node=1, profile=free)

    @ray.remote
    def deep(level: int) -> int:
        return 1 if not level else 1 + int(ray.get(deep.remote(level - 1)))

    assert ray.get(deep.remote(30)) == 31
    assert sum(ray.get([nested.remote(5) for _ in range(8)])) == 8 * 5 * 6


def test_a_wait_that_cannot_end_is_an_error_soon() -> None:
    cluster = start(nodes=8, cpus_per_node=2).cluster
    began_s, real_s = ray.now(), time.monotonic()
    with pytest.raises(RaySystemError, match="resources no node has"):
        ray.get(increment.options(num_cpus=3).remote(1))
    waited_s = ray.now() - began_s
    assert waited_s == pytest.approx(cluster.stall_s, rel=0.01)
    assert time.monotonic() - real_s < waited_s
    # The cluster goes on.
    assert ray.get(increment.remote(1)) == 2


def test_a_transfer_or_a_sleep_is_no_standstill(free: str) -> None:
    cluster = start(nodes=2, cpus_per_node=1, profile=free, object_store_memory=1 << 50).cluster
    nbytes = int(3 * cluster.stall_s * BANDWIDTH)
    there = size.options(resources={"node:1": 0.1})
    assert ray.get(there.remote(ray.put(ray.Blob(nbytes)))) == nbytes
    assert ray.get(sleep.remote(3 * cluster.stall_s, "up")) == "up"


# -- errors ----------------------------------------------------------------------


@ray.remote
def divide(a: int, b: int) -> float:
    return a / b


def test_an_error_comes_with_the_remote_traceback() -> None:
    start()
    with pytest.raises(ZeroDivisionError) as caught:
        ray.get(divide.remote(1, 0))
    assert isinstance(caught.value, RayTaskError)
    assert "divide" in str(caught.value)
    assert "return a / b" in str(caught.value)
    assert "runtime/backend/execution.py" not in str(caught.value)


def test_an_error_in_an_array_leaves_the_rest_alone() -> None:
    start()
    refs = divide.map([1, 1, 1], [1, 0, 2])
    assert ray.get(refs[0]) == 1
    assert ray.get(refs[2]) == 0.5
    with pytest.raises(ZeroDivisionError):
        ray.get(refs[1])


def test_an_input_that_is_an_error_is_the_result() -> None:
    start(nodes=2)
    with pytest.raises(ZeroDivisionError):
        ray.get(increment.remote(divide.remote(1, 0)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": "no-such"}, "no policy 'no-such'"),
        ({"policy": "no_such_module:Policy"}, "no_such_module"),
        ({"profile": "no-such"}, "no profile 'no-such'"),
        ({"profile": "/no/such/profile.json"}, "cannot read the profile"),
        ({"nodes": 0}, "0 nodes"),
        ({"nodes": -3}, "-3 nodes"),
        ({"nodes_per_host": 0}, "0 nodes per host"),
    ],
    ids=str,
)
def test_a_bad_option_is_one_clear_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        start(**options)
    assert "\n" not in str(caught.value)
    # Nothing is left of it.
    assert not ray.is_initialized()
    start()
    assert ray.get(increment.remote(1)) == 2


def test_a_broken_profile_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"name": "broken"}')
    with pytest.raises(ValueError, match="is not a profile"):
        start(profile=str(path))


# -- the cluster's life ------------------------------------------------------------


def test_what_the_cluster_says_of_itself() -> None:
    start(nodes=3, cpus_per_node=4)
    assert [row["NodeID"] for row in ray.nodes()] == ["0", "1", "2"]
    assert all(row["Alive"] for row in ray.nodes())
    assert ray.cluster_resources()["CPU"] == 12
    assert ray.get(increment.map(range(10))) == list(range(1, 11))
    events = ray.timeline()
    assert events is not None
    assert sum(e["args"]["tasks"] for e in events if e["name"].endswith("increment")) == 10


@pytest.mark.parametrize("retries", [3, 0])
def test_what_a_dead_node_held_is_made_again(retries: int) -> None:
    session = start(
        nodes=[{"CPU": 1}, *({"CPU": 1, "A": 1} for _ in range(3))], heartbeat_timeout_s=1.0
    )

    @ray.remote(resources={"A": 0.1}, max_retries=retries)
    def longer(last: Any) -> Any:
        ray.sleep(0.01)
        return np.append(last, len(last))

    value = ray.remote(max_retries=retries)(np.zeros).remote(50_000)
    for _ in range(4):
        value = longer.remote(value)
    ray.wait([value], fetch_local=False)
    for node, store in list(session.cluster.stores.items()):
        if store.value_of(value.binary()) is not None:
            session.cluster.remove_node(node)
    if not retries:
        with pytest.raises(ObjectLostError, match="no retries left"):
            ray.get(value)
        return
    assert list(ray.get(value)[-4:]) == [50_000, 50_001, 50_002, 50_003]
    counts = session.query("event_counts")
    assert counts["node_died"] == 1 and counts["task_reconstructed"] >= 1
    events = session.query("events")
    named = {row[2] for row in events if row[1] == "task_reconstructed"}
    assert len(named) == 1 and named.pop().endswith(".longer")
    assert [row[0] for row in events] == sorted(row[0] for row in events)


def test_nodes_may_differ() -> None:
    start(nodes=[{"CPU": 1}, {"CPU": 2, "GPU": 1}])
    assert ray.cluster_resources()["GPU"] == 1

    @ray.remote(num_gpus=1)
    def with_gpu() -> str:
        return "done"

    assert ray.get([with_gpu.remote() for _ in range(3)]) == ["done"] * 3


def test_paper_hosts_have_the_cores_of_the_profile() -> None:
    start(nodes=2)
    assert ray.cluster_resources()["CPU"] == 2 * load_profile("paper").cores


def test_clusters_one_after_the_other_are_alike(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        start(nodes=2, cpus_per_node=1)
        assert ray.get(increment.map(range(100))) == list(range(1, 101))
        found.append(ray.now())
        ray.shutdown()
        assert not ray.is_initialized()
    assert found[0] == found[1] == found[2]


def test_shutdown_unwinds_programs_wherever_they_wait(tmp_path: Path) -> None:
    def blocking(how: str, path: str) -> Any:
        try:
            if how == "sleep":
                ray.sleep(1e6)
            elif how == "compute":
                ray.compute(1e6)
            elif how == "get":
                ray.get(sleep.remote(1e6))
            elif how == "get with a timeout":
                ray.get(sleep.remote(1e6), timeout=1e5)
            else:
                ray.wait([sleep.remote(1e6)])
            return "it ended"
        finally:
            Path(path).write_text(how)

    ways = ["sleep", "compute", "get", "get with a timeout", "wait"]
    start(nodes=2, cpus_per_node=4)
    blocked = ray.remote(blocking)
    refs = [blocked.remote(how, str(tmp_path / how)) for how in ways]
    with pytest.raises(GetTimeoutError):
        ray.get(refs, timeout=1.0)
    assert not list(tmp_path.iterdir())
    ray.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ways)
    with pytest.raises(RaySystemError):
        ray.get(refs[0])
    start(nodes=2, cpus_per_node=4)
    assert ray.get(nested.remote(4)) == 20


def test_a_second_init_needs_a_shutdown() -> None:
    start()
    with pytest.raises(RuntimeError, match="shutdown"):
        start()


# -- speed -----------------------------------------------------------------------


def seconds_of(tasks: int, nodes: int) -> float:
    """Return the least of three CPU times of running tasks on a fresh cluster."""
    found = []
    for _ in range(3):
        start(nodes=nodes, cpus_per_node=8)
        began_s = time.process_time()
        for _ in range(tasks // 1_000):
            ray.get(increment.map(range(1_000)))
        found.append(time.process_time() - began_s)
        ray.shutdown()
    return min(found)


@pytest.mark.slow
def test_cost_grows_no_faster_than_the_tasks() -> None:
    few, many = seconds_of(20_000, 4), seconds_of(80_000, 4)
    # Four times the tasks; what grows with their square would take sixteen times.
    assert many < 8 * few


@pytest.mark.slow
def test_cost_per_task_does_not_grow_with_the_nodes() -> None:
    few, many = seconds_of(40_000, 4), seconds_of(40_000, 32)
    # Eight times the nodes send heartbeats, for the same tasks.
    assert many < 8 * few


def start_s(nodes: int) -> float:
    found = []
    for _ in range(3):
        began_s = time.process_time()
        start(nodes=nodes, cpus_per_node=64)
        ray.sleep(0.05)
        found.append(time.process_time() - began_s)
        ray.shutdown()
    return min(found)


@pytest.mark.slow
def test_idle_workers_cost_no_more_than_their_number() -> None:
    few, many = start_s(10), start_s(40)
    assert many < 8 * few
