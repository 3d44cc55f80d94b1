"""What can never be scheduled, and what crashes again and again, is said to the driver."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin
from raytwin.util import placement_group, remove_placement_group
from raytwin.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.further_nodes import FurtherNode


@pytest.fixture(params=["local", "sim"], autouse=True)
def cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    raytwin.init(backend=request.param, num_cpus=1)
    yield
    raytwin.shutdown()


def warned_of(caplog: pytest.LogCaptureFixture, *words: str) -> None:
    deadline = time.monotonic() + 60
    while not (found := [m for m in caplog.messages if all(word in m for word in words)]):
        assert time.monotonic() < deadline, caplog.messages
        raytwin.sleep(0.05)
    assert len(found) == 1


def test_a_task_that_no_node_can_run(caplog: pytest.LogCaptureFixture) -> None:
    @raytwin.remote(num_cpus=64)
    def large() -> None:
        pass

    refs = [large.remote() for _ in range(3)]
    warned_of(caplog, "large", "CPU:64", "CPU:1")
    assert not raytwin.wait(refs, timeout=0.1)[0]


def test_an_actor_that_no_node_can_run(caplog: pytest.LogCaptureFixture) -> None:
    @raytwin.remote(resources={"tape": 1})
    class Reader:
        pass

    reader = Reader.remote()
    warned_of(caplog, "Reader", "tape:1", "tape:0")
    del reader


@pytest.mark.parametrize(
    ("bundles", "strategy", "fits"),
    [
        ([{"CPU": 2}], "PACK", False),
        ([{"CPU": 1}, {"CPU": 1}], "STRICT_PACK", False),
        ([{"CPU": 0.5}, {"CPU": 0.5}], "STRICT_SPREAD", False),
        ([{"CPU": 0.5}, {"CPU": 0.5}], "PACK", True),
    ],
)
def test_a_group_that_the_nodes_cannot_take(
    bundles: list[dict[str, float]], strategy: str, fits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # What takes the CPU for a while is no reason to warn.
    busy = placement_group([{"CPU": 1}])
    assert busy.wait(60)
    group = placement_group(bundles, strategy)
    if fits:
        assert not group.wait(0.5)
        remove_placement_group(busy)
        assert group.wait(60)
        assert not caplog.messages
    else:
        warned_of(caplog, "placement group", strategy, "1 x {'CPU': 1.0}")


def test_what_a_group_holds_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    @raytwin.remote(num_cpus=0.5)
    def work() -> int:
        return 1

    @raytwin.remote(num_cpus=0.5)
    class Worker:
        def work(self) -> int:
            return 2

    group = placement_group([{"CPU": 1}])
    assert group.wait(60)
    worker = Worker.remote()
    refs = [work.remote(), worker.work.remote()]
    assert not raytwin.wait(refs, timeout=0.5)[0]
    remove_placement_group(group)
    assert raytwin.get(refs, timeout=60) == [1, 2]
    assert not caplog.messages


def test_a_demand_that_was_met_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    @raytwin.remote(num_cpus=0, resources={"tape": 1})
    def read() -> int:
        return 1

    def warned(times: int) -> None:
        deadline = time.monotonic() + 60
        while sum("tape:1" in message for message in caplog.messages) < times:
            assert time.monotonic() < deadline, caplog.messages
            raytwin.sleep(0.05)
        assert len(caplog.messages) == times

    ref = read.remote()
    warned(1)
    node = FurtherNode(raytwin, tape=1)
    assert raytwin.get(ref, timeout=60) == 1
    node.kill()
    while len([row for row in raytwin.nodes() if row["Alive"]]) > 1:
        raytwin.sleep(0.05)
    ref = read.remote()
    warned(2)


def test_a_child_that_is_too_large_for_the_group(caplog: pytest.LogCaptureFixture) -> None:
    @raytwin.remote(num_cpus=2)
    def child() -> None:
        pass

    @raytwin.remote(num_cpus=0)
    def parent() -> Any:
        return [child.remote()]

    group = placement_group([{"CPU": 1}], name="mine")
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    refs = raytwin.get(parent.options(scheduling_strategy=strategy).remote(), timeout=60)
    warned_of(caplog, "child", "CPU:2,", "placement group mine", "CPU:1")
    assert "_group_" not in caplog.text
    remove_placement_group(group)
    with pytest.raises(raytwin.exceptions.TaskPlacementGroupRemoved):
        raytwin.get(refs, timeout=60)


def test_a_task_that_crashes_again_and_again(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @raytwin.remote(max_retries=-1)
    def crash() -> int:
        attempt: int = raytwin.get_runtime_context().get_task_attempt()
        if attempt < 5:
            sys.exit(1)
        return attempt

    assert raytwin.get(crash.remote(), timeout=100) == 5
    warned_of(caplog, "crash", "died 3 times")
    trace = tmp_path / "trace.json"
    raytwin.timeline(str(trace))
    assert "died 3 times" in trace.read_text()


def test_an_actor_that_crashes_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    @raytwin.remote(max_restarts=-1)
    class Crashes:
        def __init__(self) -> None:
            sys.exit(1)

    actor = Crashes.remote()
    warned_of(caplog, "Crashes", "died 3 times", "its worker ended")
    assert "WORKER_DIED" not in caplog.text
    raytwin.kill(actor)


def test_an_attempt_counts_retries_after_errors() -> None:
    @raytwin.remote(retry_exceptions=True)
    def fail() -> Any:
        attempt = raytwin.get_runtime_context().get_task_attempt()
        if attempt < 2:
            raise ValueError
        return attempt

    assert raytwin.get(fail.remote()) == 2
    with pytest.raises(RuntimeError, match="tasks"):
        raytwin.get_runtime_context().get_task_attempt()
