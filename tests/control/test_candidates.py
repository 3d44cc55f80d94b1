"""The global scheduler's index of nodes: it chooses as a look at all nodes would.

`LookingAtAll` is the rule, without an index: it makes the views of all nodes for each range. Two
schedulers, one with the index and one with the rule, hear the same random history, and all that
they send is compared.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import inf, nextafter
from typing import Any

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import (
    ActorInfo,
    AssignTasks,
    BundlePrepared,
    CreateGroup,
    Load,
    LoadChanged,
    LocateObjects,
    Location,
    NodeChanged,
    NodeInfo,
    ObjectLocations,
    PlaceTasks,
    PrepareBundle,
    RemoveGroup,
    TaskExtra,
    TasksMoved,
)
from raytwin.runtime.control.scheduling.candidates import Candidates, NodeView
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.control.scheduling.node_views import (
    DEMANDS_MAX,
    MOVED_MAX,
    AbleNodes,
    Node,
    NodeIndex,
    about,
)
from raytwin.runtime.control.scheduling.policies import POLICIES, BottomUp, Policy, make_policy
from raytwin.runtime.control.scheduling.strategies import (
    SPREAD,
    Spreading,
    affinity,
    is_hard,
    target_of,
)
from tests.control.alone import Alone, array, spec
from tests.control.group_tables import named

GROUP = named(1, 1).group


class Mixed(BottomUp):
    """A policy of a user's: it looks at all nodes, at some by number, or leaves it to the rule."""

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        if rng.random() < 0.3:
            return max(nodes, key=lambda view: (view.remote_bytes, -view.queue, view.node))
        return super().choose(nodes if rng.random() < 0.8 else nodes[-3:], rng)

    def spread(
        self, nodes: Sequence[NodeView], pieces: Sequence[int], rng: random.Random
    ) -> list[NodeView]:
        chosen = []
        for count in pieces:
            view = nodes[rng.randrange(len(nodes))] if rng.random() < 0.3 else None
            chosen.append(view or self.choose(nodes, rng))
            chosen[-1].queue += count
        return chosen


class LookingAtAll(NodeIndex):
    """Makes the views of all nodes for each range, and finds by looking at each."""

    def able(self, nodes: Mapping[int, Node], demand: str) -> AbleNodes:
        return AllNodes(demand, nodes, about(self.usual_s(nodes)))

    def usual_s(self, nodes: Mapping[int, Node]) -> float:
        timed = [Fraction(n.load.mean_task_s) for n in nodes.values() if n.load.mean_task_s]
        return float(sum(timed) / len(timed)) if timed else 0.0


class AllNodes(AbleNodes):
    def __init__(self, demand: str, nodes: Mapping[int, Node], mean_s: float) -> None:
        self.demand, self.nodes, self.mean_s = demand, nodes, mean_s
        self.inputs: list[Location] = []

    def locate(self, inputs: Collection[Location]) -> None:
        self.inputs = list(inputs)

    def allowed(self, strategy: str, home: int, left: int, thief: int = -1) -> Sequence[NodeView]:
        views = [
            NodeView(
                number,
                node.queue,
                node.pool.slots(self.demand),
                node.load.mean_task_s or self.mean_s,
                sum(place.size for place in self.inputs if number not in place.nodes),
                node.load.bandwidth,
                node.busy_s(self.demand),
            )
            for number, node in self.nodes.items()
            if node.pool.feasible(self.demand)
        ]
        if strategy and strategy != SPREAD:
            target = [view for view in views if view.node == target_of(strategy)]
            views = target if target or is_hard(strategy) else views
        if self.demand:
            views = (
                [view for view in views if view.slots]
                or [view for view in views if view.node == home]
                or views
            )
        return [view for view in views if view.node != left] or views

    def room_beside(self, node: int) -> int:
        return sum(
            other.room(self.demand, MOVED_MAX)
            for number, other in self.nodes.items()
            if number != node and other.pool.feasible(self.demand)
        )

    def all_held(self) -> bool:
        return not any(node.pool.usable(self.demand) for node in self.nodes.values())


class SpreadingOverAll(Spreading):
    def spread(self, nodes: Sequence[NodeView], pieces: Sequence[int]) -> list[NodeView]:
        chosen = []
        for count in pieces:
            view = min(
                nodes,
                key=lambda v: (v.queue // max(1, v.slots), v.node <= self._last, v.node),
            )
            self._last = view.node
            view.queue += count
            chosen.append(view)
        return chosen


class Twins:
    """A scheduler with the index and one without: they hear the same."""

    def __init__(self, policy: str) -> None:
        self.contexts = [Alone(), Alone()]
        self.made = [GlobalScheduler(ctx, Config(policy=policy)) for ctx in self.contexts]
        self.made[1].node_index = LookingAtAll()
        self.made[1].spreading = SpreadingOverAll()
        self.placed: list[list[tuple[str, int]]] = []

    @property
    def nodes(self) -> dict[int, Node]:
        return self.made[0].nodes

    def tell(self, message: Any, source: str = "gcs") -> list[tuple[str, Any]]:
        """Return what both say to it."""
        for scheduler in self.made:
            scheduler.handle(source, message)
        one, other = (ctx.sent for ctx in self.contexts)
        assert one == other, message
        for ctx in self.contexts:
            ctx.sent = []
        self.placed += [
            [(to, part.count) for part in said.tasks] for to, said in one
            if isinstance(said, AssignTasks)
        ]  # fmt: skip
        return one


class History:
    """What happens to a cluster, drawn from a seed: few values, so that many nodes are equal."""

    def __init__(self, rng: random.Random, nodes: int) -> None:
        self.rng = rng
        self.most = nodes
        self.demands = ["CPU:1", "CPU:2", "", "GPU:1", "CPU:1,GPU:0.5"]
        self.arrays = 0
        self.incarnation = 0
        self.grouped = 0

    def joins(self) -> NodeChanged:
        rng = self.rng
        self.incarnation += 1
        own = {"CPU": float(rng.choice([0, 1, 2, 3, 3])), "GPU": float(rng.choice([0, 0, 1]))}
        info = NodeInfo(rng.randrange(self.most), "", 0, own, incarnation=self.incarnation)
        return NodeChanged(info)

    def dies(self, node: int) -> NodeChanged:
        return NodeChanged(NodeInfo(node, "", 0, {}, alive=False, incarnation=self.incarnation))

    def loads(self, number: int, node: Node) -> LoadChanged:
        rng = self.rng
        free = {name: rng.choice([0.0, amount]) for name, amount in node.own.items()}
        load = Load(
            rng.choice([0, 0, 1, 2, 3, 6]),
            rng.choice([0.0, 0.0, 0.01, 0.03, 0.1, rng.random()]),
            rng.choice([0.0, 0.0, 1e8, 3e8, rng.uniform(1e8, 2e9)]),
            node.sent - rng.choice([0, 0, 0, min(2, node.sent)]),
            free,
            {rng.choice(self.demands): rng.randint(1, 300)} if rng.random() < 0.2 else {},
            {"CPU": int(node.own["CPU"]) * 10_000} if rng.random() < 0.15 else {},
            rng.choice([0.0, 0.0, 0.02, rng.random()]),
        )
        return LoadChanged(number, load)

    def range(self, count: int, deps: int = 0) -> Any:
        rng = self.rng
        self.arrays += 1
        found = spec(
            self.arrays,
            count=count,
            owner=f"driver:{rng.randrange(self.most)}.0",
            demand=rng.choice(self.demands if deps == 0 else self.demands[:3]),
            deps=tuple(object_id(array(9_000 + rng.randrange(9)), 0, 0) for _ in range(deps)),
        )
        draw = rng.random()
        if deps == 0 and draw < 0.1:
            found.extra = TaskExtra(strategy=SPREAD)
        elif deps == 0 and draw < 0.2:
            found.extra = TaskExtra(strategy=affinity(rng.randrange(self.most), rng.random() < 0.6))
        elif deps == 0 and draw < 0.3 and count == 1:
            found.extra = TaskExtra(actor=ActorInfo("A"))
        return found

    def locations(self, asked: LocateObjects, alive: Sequence[int]) -> ObjectLocations:
        rng = self.rng
        return ObjectLocations([
            Location(
                oid,
                tuple(rng.sample(alive, rng.choice([0, 1, 1, 2, len(alive)]) % (len(alive) + 1))),
                rng.choice([0, 10_000_000, 50_000_000]),
            )
            for oid in asked.objects
        ])  # fmt: skip

    def step(self, twins: Twins) -> None:
        rng, alive = self.rng, list(twins.nodes)
        draw = rng.random()
        if draw < 0.08 or not alive:
            twins.tell(self.joins())
        elif draw < 0.10:
            twins.tell(self.dies(rng.choice(alive)))
        elif draw < 0.50:
            for number in rng.sample(alive, rng.randint(1, len(alive))):
                twins.tell(self.loads(number, twins.nodes[number]))
        elif draw < 0.70:
            twins.tell(PlaceTasks([self.range(1)]))
        elif draw < 0.80:
            twins.tell(PlaceTasks([self.range(rng.randint(1, 40))]))
        elif draw < 0.92:
            for _, asked in twins.tell(PlaceTasks([self.range(1, rng.randint(1, 3))])):
                if isinstance(asked, LocateObjects):
                    twins.tell(self.locations(asked, alive))
        elif draw < 0.97:
            at = rng.choice(alive)
            moved = [self.range(rng.randint(1, 3)) for _ in range(3)]
            twins.tell(TasksMoved(at, twins.nodes[at].incarnation, moved))
        elif self.grouped:
            self.grouped = 0
            twins.tell(RemoveGroup(GROUP))
        else:
            self.group(twins)

    def group(self, twins: Twins) -> None:
        """Reserve bundles, whose resources tasks demand from then on."""
        created = CreateGroup(GROUP, "", [{"CPU": 1.0}, {"CPU": 1.0}], "SPREAD")
        self.grouped = 1
        self.demands.append(demand_in("CPU:1", GROUP, self.rng.choice([-1, 0])))
        for to, asked in twins.tell(created, "node:0"):
            if isinstance(asked, PrepareBundle):
                node = int(to.partition(":")[2])
                answer = BundlePrepared(node, GROUP, asked.index, True, asked.attempt)
                twins.tell(answer, to)


@pytest.mark.parametrize("policy", [*POLICIES, "tests.control.test_candidates:Mixed"])
@pytest.mark.parametrize("seed", range(3))
def test_the_index_chooses_as_a_look_at_all_nodes_does(policy: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(f"candidates/{seed}")
    twins = Twins(policy)
    nodes = (3, 8, 30)[seed]
    history = History(rng, nodes)
    for _ in range(250):
        history.step(twins)
    assert len(twins.placed) > 60
    assert len({to for parts in twins.placed for to, _ in parts}) > nodes / 2


@pytest.mark.parametrize("policy", [*POLICIES, "tests.control.test_candidates:Mixed"])
def test_candidates_are_as_good_as_a_list(policy: str) -> None:
    """Views come, go, and change while a range is spread."""
    rng = random.Random(f"list/{policy}")
    made: Policy = make_policy(Config(policy=policy))
    candidates = Candidates()
    positions: dict[int, int] = {}
    for step in range(400):
        node = rng.randrange(12)
        if node in positions and rng.random() < 0.2:
            del positions[node]
            candidates.drop(node)
        else:
            view = NodeView(
                node, rng.randrange(4), rng.randint(0, 3), rng.choice([0.0, 0.01, 0.02]), 0,
                rng.choice([0.0, 5e8, 1e9, nextafter(1e9, inf), 2e9, rng.uniform(1e8, 1e9)]),
                rng.choice([0, 0, 0.01]),
            )  # fmt: skip
            positions.setdefault(node, step)
            candidates.put(view, positions[node])
        if not positions:
            continue
        sizes = rng.choice([[], [0], [5_000_000], [1_000_000, 20_000_000]])
        inputs = [
            Location(b"%d" % at, tuple(rng.sample(range(12), rng.randrange(3))), size)
            for at, size in enumerate(sizes)
        ]
        candidates.locate(inputs)
        plain = [
            NodeView(v.node, v.queue, v.slots, v.mean_task_s, v.remote_bytes, v.bandwidth, v.busy_s)
            for v in candidates
        ]
        assert [view.node for view in plain] == sorted(positions, key=positions.__getitem__)
        for view in plain:
            absent = [place.size for place in inputs if view.node not in place.nodes]
            assert view.remote_bytes == sum(absent)
        pieces = [rng.randint(1, 3) for _ in range(rng.randint(1, 6))]
        seed = rng.random()
        ours = made.spread(candidates, pieces, random.Random(seed))
        theirs = made.spread(plain, pieces, random.Random(seed))
        assert [view.node for view in ours] == [view.node for view in theirs]


def test_a_placement_looks_only_at_nodes_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = Alone()
    made = GlobalScheduler(ctx, Config())
    looked: list[int] = []
    look = AbleNodes._look

    def noted(self: AbleNodes, number: int, node: Node | None) -> None:
        looked.append(number)
        look(self, number, node)

    monkeypatch.setattr(AbleNodes, "_look", noted)
    for node in range(100):
        made.handle("gcs", NodeChanged(NodeInfo(node, "", 0, {"CPU": 1.0}, incarnation=1)))
        made.handle("gcs", LoadChanged(node, Load(0, 0.01, 0.0, 0, {"CPU": 1.0})))
    made.handle("node:0", PlaceTasks([spec(1)]))
    assert sorted(looked) == list(range(100))
    looked.clear()
    made.handle("gcs", LoadChanged(7, Load(0, 0.01, 0.0, 0, {"CPU": 1.0})))
    for number in range(2, 52):
        made.handle("node:0", PlaceTasks([spec(number)]))
    chosen = [to for to, message in ctx.sent if isinstance(message, AssignTasks)]
    assert sorted(chosen) == sorted(f"node:{node}" for node in range(51))
    assert sorted(looked) == sorted([7, *range(50)])


def test_the_index_is_bounded() -> None:
    made = GlobalScheduler(Alone(), Config())
    made.handle("gcs", NodeChanged(NodeInfo(0, "", 0, {"CPU": 1.0}, incarnation=1)))
    for number in range(2 * DEMANDS_MAX):
        made.handle("node:0", PlaceTasks([spec(number, demand=f"CPU:0.{number:03}1")]))
    assert len(made.node_index._able) == DEMANDS_MAX
    made.handle("node:0", PlaceTasks([spec(999, demand="CPU:0.5")]))
    candidates = made.node_index.able(made.nodes, "CPU:0.5").allowed("", 0, -1)
    assert [view.node for view in candidates] == [0]


def test_what_is_assumed_of_untimed_nodes_is_right_to_three_percent() -> None:
    times_s = [10 ** (exponent / 40) for exponent in range(-400, 200)]
    for time_s in times_s:
        assert about(time_s) == pytest.approx(time_s, rel=0.032)
    assert all(about(one) <= about(two) for one, two in pairwise(times_s))
    assert about(0.0) == 0.0
