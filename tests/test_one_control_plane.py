"""One control plane, two contexts: what real processes decided, SimPy decides too.

A workload runs on real processes, which write every turn of every control-plane
component into a journal: when, what came in, what went out. Then the same
components are made anew under the *simulator's* context, in SimPy's virtual
time, and are given the same inputs at the same times. Every message that they
send must be the one that was sent in reality: each placement, each dispatch to
a worker, each answer.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import simpy

import raytwin as ray
from raytwin.runtime import journal
from raytwin.runtime.control.core.addresses import HEALTH
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import AssignTasks, PlaceTasks, RunTasks, StealTasks
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.journal import Turn
from raytwin.simulator.machine.costs import CostModel, RoleCost
from raytwin.simulator.machine.host import Host
from raytwin.simulator.machine.simulated_process import Counts, SimContext, SimProcess

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


class _Replay:
    """One component under the simulator's context, driven by a journal."""

    def __init__(
        self, address: str, config: Config, turns: list[Turn], nodes: list[dict[str, Any]]
    ) -> None:
        """`nodes` are the rows of `ray.nodes`, whose resources a node starts with."""
        self.turns = turns
        self.resources = {row["NodeID"]: row["Resources"] for row in nodes}
        self.env = simpy.Environment(initial_time=turns[0].now_s)
        cluster: Any = SimpleNamespace(
            env=self.env,
            seed=config.seed,
            processes={},
            skews_s={},
            journal=None,
            journaled=set(),
            counts=defaultdict(Counts),
        )
        host = Host(self.env, 1)
        process = SimProcess(cluster, address, 0, host, CostModel(RoleCost()))
        self.ctx: SimContext = process.context(address)
        self.timers: dict[int, Any] = {}
        # Timers fire when the journal says that they did.
        self.ctx.after = self._after  # type: ignore[method-assign]
        self.component = self._make(address, config)
        process.add(address, self.component)
        self.ctx.outbox = {}

    def _make(self, address: str, config: Config) -> Any:
        if address == "gcs":
            return Gcs(self.ctx, config)
        if address == HEALTH:
            detector = FailureDetector(self.ctx, config)
            detector.start()
            return detector
        if address == "global":
            return GlobalScheduler(self.ctx, config)
        number = address.partition(":")[2]
        scheduler = NodeManager(self.ctx, int(number), self.resources[number], config)
        scheduler.start("127.0.0.1", 0)
        return scheduler

    def _after(self, delay_s: float, callback: Any) -> Any:
        self.ctx.timers += 1
        self.timers[self.ctx.timers] = callback
        return SimpleNamespace(cancel=lambda: None)

    def run(self) -> list[tuple[Turn, list[tuple[str, list[Any]]]]]:
        """Return each recorded turn with what the component sent in it now."""
        replayed = []
        for turn in self.turns:
            if turn.now_s > self.env.now:
                self.env.run(until=turn.now_s)
            for source, messages in turn.inputs:
                for message in messages:
                    self.component.handle(source, message)
            if turn.timer:
                self.timers.pop(turn.timer)()
            self.component.end_turn()
            sent, self.ctx.outbox = self.ctx.outbox, {}
            replayed.append((turn, list(sent.items())))
        return replayed


@pytest.mark.parametrize(
    "policy",
    ["bottom-up", "locality-blind", "centralized", "random", "power-of-two", "batch-sampling",
     "work-stealing"],
)  # fmt: skip
def test_the_simulators_context_leads_to_every_real_decision(policy: str, tmp_path: Path) -> None:
    seed = 7
    print(f"seed {seed}")
    ray.init(nodes=NODES, cpus_per_node=CPUS, policy=policy, seed=seed, journal=tmp_path)
    try:
        _workload()
        nodes = ray.nodes()
    finally:
        ray.shutdown()
    config = Config(policy=policy, seed=seed)
    decisions: Counter[str] = Counter()
    files = sorted(tmp_path.glob("*.journal"))
    assert len(files) == NODES + 3
    for path in files:
        turns = list(journal.read(path))
        assert turns, f"{path.name} is empty"
        replay = _Replay(turns[0].component, config, turns, nodes)
        for number, (turn, sent) in enumerate(replay.run()):
            assert sent == turn.outputs, f"{turn.component}, turn {number} of {len(turns)}"
            for _, messages in sent:
                decisions.update(type(m).__name__ for m in messages)
    # The workload made the decisions that this test is about.
    assert decisions[RunTasks.__name__] > 50
    placed = StealTasks if policy == "work-stealing" else PlaceTasks
    assert decisions[placed.__name__] > 0
    assert decisions[AssignTasks.__name__] > 0


def test_a_different_decision_is_noticed(tmp_path: Path) -> None:
    """The comparison above can fail: another seed draws other nodes."""
    ray.init(nodes=NODES, cpus_per_node=CPUS, policy="random", seed=1, journal=tmp_path)
    try:
        _workload()
        nodes = ray.nodes()
    finally:
        ray.shutdown()
    turns = list(journal.read(tmp_path / "global.journal"))
    replay = _Replay("global", Config(policy="random", seed=2), turns, nodes)
    assert any(sent != turn.outputs for turn, sent in replay.run())
