"""Operations that take virtual time, and how long; waits, and deadlocks."""

from __future__ import annotations

import time

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import GetTimeoutError, RaySystemError
from tests.simulator.programs import compute, increment, nested, size, sleep, three
from tests.simulator.virtual_cluster import BANDWIDTH, elapsed_s, start


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


def test_a_long_turn_is_no_standstill() -> None:
    cluster = start(nodes=4, policy="centralized").cluster
    count = 3_000_000
    head_s, began_s = cluster.head.busy_s, ray.now()
    assert len(ray.get(increment.map(range(count)))) == count
    assert cluster.head.busy_s - head_s > cluster.stall_s, "to place them takes no longer"
    assert ray.now() - began_s > cluster.stall_s
    waits = increment.options(num_cpus=100).remote(1)
    with pytest.raises(RaySystemError, match="resources no node has"):
        ray.get(waits)


def test_a_long_turn_ends_with_its_process() -> None:
    cluster = start(nodes=2, cpus_per_node=64).cluster
    there = increment.options(resources={"node:1": 0.001})
    assert ray.get(there.remote(1)) == 2
    process = cluster.processes["node:1"]
    began_s, waits = process.busy_s, there.map(range(200_000))
    while process.busy_s < began_s + 1.0:  # counted as the turn begins
        ray.sleep(0.1)
    assert cluster.working == 1
    cluster.kill_node(1)
    assert not cluster.working
    with pytest.raises(RaySystemError, match="resources no node has"):
        ray.get(waits)
