"""One control plane, two contexts: what real processes decided, SimPy decides too.

A workload runs on real processes, which write every turn of every component of the head, the nodes
and the replicas into a journal: when, what came in, what went out. Then the same components are
made anew under the *simulator's* context and are given the same inputs at the same times. Every
message that they send must be the one that was sent in reality: each placement, each dispatch to a
worker, each answer.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import raytwin as ray
from raytwin.runtime.control.core.addresses import HEALTH
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.messages import (
    AssignTasks,
    HeartbeatEcho,
    PlaceTasks,
    RunTasks,
    StealTasks,
)
from raytwin.runtime.journal import JournalReader, Origin
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.simulator.machine.replayed_component import ReplayedTurn, replay

NODES = 3
CPUS = 2


def _work(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def _add(*parts: int) -> int:
    return sum(parts)


def _workload() -> None:
    """Short and long tasks, arrays, inputs large and small, nested tasks."""
    work, add = ray.remote(_work), ray.remote(_add)

    @ray.remote
    def nested(count: int) -> int:
        return sum(ray.get([work.remote(0.001) for _ in range(count)]))

    @ray.remote
    def weigh(blob: Any) -> int:
        return int(blob.nbytes)

    assert ray.get(ray.remote(_add).map(range(2000))) == list(range(2000))
    assert sum(ray.get([work.remote(0.01) for _ in range(60)])) == 60
    assert ray.get([nested.remote(5) for _ in range(4)]) == [5] * 4
    blob = ray.put(ray.Blob(2_000_000))
    assert set(ray.get([weigh.remote(blob) for _ in range(20)])) == {2_000_000}
    parts = [work.remote(0.005) for _ in range(8)]
    assert ray.get(add.remote(*parts)) == 8


def _replayed(path: Path) -> list[ReplayedTurn]:
    reader = JournalReader(path)
    assert reader.origin is not None
    replayed = list(replay(reader.origin, reader))
    assert len(replayed) == reader.turns > 1, f"{path.name} has {reader.turns} turns"
    return replayed


def _check(directory: Path) -> Counter[str]:
    """Replay all journals; return how many messages of each type were sent, in all turns."""
    decisions: Counter[str] = Counter()
    for path in directory.glob("*.journal"):
        for each in _replayed(path):
            assert each.agrees, f"{path.name}, turn {each.number}"
            for _, messages in each.sent:
                decisions.update(type(message).__name__ for message in messages)
    return decisions


@pytest.mark.parametrize(
    "policy",
    ["bottom-up", "locality-blind", "centralized", "random", "power-of-two", "batch-sampling",
     "work-stealing"],
)  # fmt: skip
def test_the_simulators_context_leads_to_every_real_decision(policy: str, tmp_path: Path) -> None:
    seed = 7
    print(f"seed {seed}")
    with ray.init(nodes=NODES, cpus_per_node=CPUS, policy=policy, seed=seed, journal=tmp_path):
        _workload()
    decisions = _check(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {
        "gcs", "global", "health", *(f"node-{node}" for node in range(NODES))
    }  # fmt: skip
    # The workload made the decisions that this test is about.
    assert decisions[RunTasks.__name__] > 50
    placed = StealTasks if policy == "work-stealing" else PlaceTasks
    assert decisions[placed.__name__] > 0
    assert decisions[AssignTasks.__name__] > 0


@pytest.mark.parametrize(
    ("options", "there"),
    [
        ({"gcs_replicas": 2}, {"master", "replica-0.1", "replica-0.2"}),
        ({"gcs_shards": 2}, {"master", "master.2", "relay", "replica-0.2000001"}),
    ],
)
def test_masters_relays_and_replicas_decide_as_they_did(
    options: dict[str, int], there: set[str], tmp_path: Path
) -> None:
    with ray.init(nodes=NODES, cpus_per_node=CPUS, seed=7, journal=tmp_path, **options):
        _workload()
    _check(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} > there


def test_a_head_that_was_killed_and_the_next_have_a_journal_each(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    session: Any = ray.init(
        nodes=NODES, cpus_per_node=CPUS, gcs_storage=tmp_path / "state", journal=journals
    )
    with session:
        _workload()
        session.cluster.kill("head", signal.SIGKILL)
        _workload()
    _check(journals)
    former, later = (JournalReader(journals / f"replica-0.1{n}.journal") for n in ("", ".2"))
    assert former.origin is not None and later.origin is not None
    assert not former.origin.state and later.origin.state


def test_a_different_decision_is_noticed(tmp_path: Path) -> None:
    """The comparison above can fail: another seed draws other nodes."""
    with ray.init(nodes=NODES, cpus_per_node=CPUS, policy="random", seed=1, journal=tmp_path):
        _workload()
    reader = JournalReader(tmp_path / "global.journal")
    assert reader.origin is not None
    config = msgspec.structs.replace(reader.origin.config, seed=2)
    other = msgspec.structs.replace(reader.origin, config=config)
    assert not all(each.agrees for each in replay(other, reader))


def test_a_turn_that_raises_is_in_the_journal_and_raises_again(tmp_path: Path) -> None:
    config = Config()
    process = ComponentProcess(config.seed, tmp_path)
    process.add(HEALTH, FailureDetector(process.begin_first_turn(HEALTH), config))
    process.end_first_turn(Origin(HEALTH, config))
    process.deliver("gcs", HEALTH, HeartbeatEcho(0.0))
    with pytest.raises(AssertionError, match="was sent HeartbeatEcho"):
        process.turns.run_rounds()
    process.reactor.close()
    *_, crash = _replayed(tmp_path / "health.journal")
    assert crash.agrees
    assert isinstance(crash.error, AssertionError)
    assert "was sent HeartbeatEcho" in crash.turn.error
