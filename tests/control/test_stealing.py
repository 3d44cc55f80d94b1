"""Work stealing: whom an idle node asks, what another one gives, and what faults do to it."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.local_scheduler import stealing
from raytwin.runtime.control.local_scheduler.stealing import (
    REST_S_MAX,
    REST_S_MIN,
    VICTIMS_MAX,
    Stage,
)
from raytwin.runtime.control.messages import (
    AssignTasks,
    CancelTask,
    FunctionBlob,
    Load,
    LoadChanged,
    NodeChanged,
    NodeInfo,
    NodesJoined,
    StealAnswer,
    StealTasks,
    SubmitTasks,
    TaskExtra,
    TasksMoved,
    TaskUpdates,
    WorkerReady,
)
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control import test_system as system
from tests.control.alone import Alone, array, spec
from tests.control.world import World

CONFIG = Config(policy="work-stealing")
FREE = {"CPU": 2.0}


def info(node: int, alive: bool = True) -> NodeInfo:
    return NodeInfo(node, "", 0, {"CPU": 2.0}, alive, 1)


class Node:
    """Node 0 of several, with its workers."""

    def __init__(self, others: int = 3, config: Config = CONFIG, cpus: int = 2) -> None:
        self.ctx = Alone()
        self.manager = NodeManager(self.ctx, 0, {"CPU": cpus, "tool": 1.0}, config)
        self.manager.workers.start()
        self.turn("gcs", FunctionBlob(b"f", b"code"))
        self.turn("gcs", NodesJoined([info(node) for node in range(others + 1)]))
        for number in range(cpus):
            self.turn(f"worker:0.{number + 1}", WorkerReady(1))

    def turn(self, source: str, *messages: Any) -> None:
        for message in messages:
            self.manager.handle(source, message)
        self.manager.end_turn()

    def wait(self, seconds: float) -> None:
        """Let time pass; each timer ends with a turn."""
        end_s = self.ctx.time_s + seconds
        while due := [t.due_s for t in self.ctx.timers if t.due_s <= end_s and not t.cancelled]:
            self.ctx.pass_time(max(0.0, min(due) - self.ctx.time_s))
            self.manager.end_turn()
        self.ctx.pass_time(end_s - self.ctx.time_s)

    def asked(self) -> list[str]:
        """Return who was asked since the last call."""
        found = [to for to, message in self.ctx.sent if isinstance(message, StealTasks)]
        self.ctx.take(StealTasks)
        return found

    def refuse(self) -> list[str]:
        """Let every node that is asked have nothing, until none is; return all of them."""
        every = []
        while victims := self.asked():
            every += victims
            for victim in victims:
                self.turn(victim, StealAnswer(0))
        return every

    def steal(self, available: dict[str, float], thief: int = 1) -> list[tuple[bytes, int, int]]:
        """Ask as a thief; return the ranges that it gives."""
        self.turn(f"node:{thief}", StealTasks(available))
        (answer,) = self.ctx.take(StealAnswer, f"node:{thief}")
        moved = self.ctx.take(TasksMoved, "global")
        assert all((each.node, each.thief) == (0, thief) for each in moved)
        given = [(s.array, s.start, s.count) for each in moved for s in each.tasks]
        assert answer.count == sum(count for *_, count in given)
        return given


@pytest.fixture
def busy() -> Node:
    """A node whose workers run the first two of a hundred and two elements of array 1."""
    node = Node()
    node.turn("driver:0.0", SubmitTasks([spec(1, 0, 102)]))
    node.ctx.sent.clear()
    assert node.manager.ready.size == 100
    return node


def test_a_victim_gives_half_of_what_waits_the_oldest_first(busy: Node) -> None:
    busy.turn("driver:0.0", SubmitTasks([spec(2, 0, 20)]))
    assert busy.steal(FREE) == [(array(1), 2, 60)]
    assert busy.steal(FREE, thief=2) == [(array(1), 62, 30)]
    assert busy.steal(FREE) == [(array(1), 92, 10), (array(2), 0, 5)]
    assert busy.manager.ready.size == 15
    sizes = []
    while given := busy.steal(FREE):
        sizes.append(sum(count for *_, count in given))
    assert sizes == [8, 4, 2, 1], "at least one"
    assert busy.steal(FREE) == []


def test_a_victim_gives_what_the_thief_can_start_and_it_cannot(busy: Node) -> None:
    busy.turn(
        "driver:0.0",
        SubmitTasks([spec(2, 0, 4, demand="CPU:1,tool:1"), spec(3, 0, 2, demand="CPU:4")]),
    )
    assert busy.steal({"CPU": 0.5}) == []
    assert busy.steal({"CPU": 1.0})[0][0] == array(1)
    busy.turn("driver:0.0", CancelTask(array(1), 0, 200, False, False))
    assert busy.manager.ready.size == 4, "what it can never run is not here"
    assert busy.steal({"CPU": 9.0}) == [], "the thief lacks the tool"
    assert busy.steal({"CPU": 9.0, "tool": 1.0}) == [(array(2), 0, 2)]
    assert busy.steal({"CPU": 9.0, "tool": 0.0}) == []


def test_what_its_own_workers_will_take_stays() -> None:
    node = Node(cpus=1)
    node.turn("driver:0.0", SubmitTasks([spec(1, demand="")]))
    node.turn("driver:0.0", SubmitTasks([spec(2, demand=""), spec(3, demand="")]))
    assert node.manager.ready.size, "its worker is busy, and another one starts"
    assert node.steal(FREE) == []


def test_what_has_a_strategy_or_a_group_or_has_begun_stays(busy: Node) -> None:
    busy.turn("driver:0.0", CancelTask(array(1), 0, 200, False, False))
    assert not busy.manager.ready.size
    extras = [
        TaskExtra(strategy="node:0"),
        TaskExtra(strategy="soft:0"),
        TaskExtra(strategy="SPREAD"),
        TaskExtra(group="ab"),
        TaskExtra(begun=0),
    ]
    tasks = [spec(number, 0, 3) for number in range(2, 3 + len(extras))]
    for task, extra in zip(tasks, extras, strict=False):
        task.extra = extra
    busy.turn("global", AssignTasks(tasks, 1))
    assert busy.manager.ready.size == 18
    last = tasks[-1].array
    assert busy.steal(FREE) == [(last, 0, 2)], "of the other it is half"
    assert busy.steal(FREE) == [(last, 2, 1)]
    assert busy.steal(FREE) == []
    assert busy.manager.ready.size == 15


def test_an_idle_node_asks_all_others_then_rests_ever_longer() -> None:
    node = Node(others=3)
    assert node.manager.stealing.stage is Stage.ASKING
    assert sorted(node.refuse()) == ["node:1", "node:2", "node:3"]
    assert node.manager.stealing.stage is Stage.RESTING
    rest_s = REST_S_MIN
    orders = set()
    while rest_s < 2 * REST_S_MAX:
        node.wait(0.9 * rest_s)
        assert not node.asked()
        node.wait(0.11 * rest_s)
        order = node.refuse()
        assert sorted(order) == ["node:1", "node:2", "node:3"]
        orders.add(tuple(order))
        if rest_s == REST_S_MAX:
            break
        rest_s = min(2 * rest_s, REST_S_MAX)
    assert len(orders) > 1, "at random"


def test_a_large_cluster_is_asked_in_samples() -> None:
    node = Node(others=100)
    seen = set(node.refuse())
    assert len(seen) == VICTIMS_MAX
    node.wait(REST_S_MIN)
    assert len(seen | set(node.refuse())) > VICTIMS_MAX


def test_a_node_that_was_given_something_waits_for_it_and_begins_anew() -> None:
    node = Node()
    for _ in range(3):
        node.refuse()
        node.wait(REST_S_MAX)
    (victim,) = node.asked()
    node.turn(victim, StealAnswer(1))
    assert not node.asked() and node.manager.stealing.stage is Stage.RECEIVING
    node.turn("global", AssignTasks([spec(1, owner="driver:1.0")], 1))
    assert len(node.refuse()) == 3, "one of its two CPUs is still idle"
    node.wait(REST_S_MIN)
    assert node.asked(), "the rests are short again"


def test_only_a_node_with_idle_workers_and_an_empty_queue_asks(busy: Node) -> None:
    busy.manager.stealing._change(Stage.WORKING)
    busy.turn("gcs", FunctionBlob(b"g", b"code"))
    assert not busy.asked()
    waiting = Node(others=0)
    assert not waiting.asked(), "it is alone"
    late = Node()
    late.refuse()
    late.turn("global", AssignTasks([spec(1, function=b"unknown", owner="driver:1.0")], 1))
    late.wait(1.0)
    assert not late.asked(), "its function is on its way"
    late.turn("gcs", FunctionBlob(b"unknown", b"code"))
    late.wait(REST_S_MAX)
    assert late.asked()


@pytest.mark.parametrize("policy", ["bottom-up", "random"])
def test_with_other_policies_nobody_asks(policy: str) -> None:
    node = Node(config=Config(policy=policy))
    node.wait(1.0)
    assert not node.asked()


@pytest.mark.parametrize("promised", [False, True])
def test_a_thief_gives_up_a_victim_that_died(promised: bool) -> None:
    """Its answer is lost, or the ranges that it gave: the GCS has those placed again."""
    node = Node()
    (victim,) = node.asked()
    if promised:
        node.turn(victim, StealAnswer(4))
    node.wait(0.99 * CONFIG.heartbeat_s)
    assert not node.asked()
    node.wait(0.02 * CONFIG.heartbeat_s)
    (other,) = node.asked()
    if not promised:
        assert other != victim
        node.turn(victim, StealAnswer(0))
        assert not node.asked(), "an answer that comes too late changes nothing"


def test_dead_nodes_are_not_asked() -> None:
    members = Membership(0, 1)
    for each in (0, 2, 1):
        members.update(info(each))
    assert members.others() == [1, 2]
    members.update(info(2, alive=False))
    assert members.others() == [1]
    members.begin({0: info(0), 3: info(3)})
    assert members.others() == [1, 3]


@pytest.fixture
def scheduler() -> GlobalScheduler:
    made = GlobalScheduler(Alone(), CONFIG)
    for node in range(4):
        made.handle("gcs", NodeChanged(info(node)))
        made.handle("gcs", LoadChanged(node, Load(0, 0.0, 0.0, 0, {"CPU": 2.0})))
    return made


def given(ctx: Any) -> list[tuple[str, int, int]]:
    return [
        (to, part.start, part.count)
        for to, message in ctx.sent
        if isinstance(message, AssignTasks)
        for part in message.tasks
    ]


@pytest.mark.parametrize("thief", [1, 2, 3])
def test_stolen_ranges_go_to_the_thief_and_are_logged_as_moved(
    scheduler: GlobalScheduler, thief: int
) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("node:0", TasksMoved(0, 1, [spec(1, 3, 40)], thief))
    assert given(ctx) == [(f"node:{thief}", 3, 40)]
    (logged,) = ctx.take(TaskUpdates)
    assert (logged.node, logged.left, logged.added[0].count) == (thief, 0, 40)


def test_if_the_thief_has_died_its_ranges_go_to_others(scheduler: GlobalScheduler) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("gcs", NodeChanged(info(2, alive=False)))
    scheduler.handle("node:0", TasksMoved(0, 1, [spec(1, 0, 40)], 2))
    assert sum(count for *_, count in given(ctx)) == 40
    assert {to for to, *_ in given(ctx)} <= {"node:1", "node:3"}
    assert {message.left for message in ctx.take(TaskUpdates)} == {0}


def test_ranges_of_a_node_that_is_not_known_yet_wait_for_the_news_of_it() -> None:
    """They were taken for a dead node's, which the GCS has placed again, and were lost."""
    ctx: Any = Alone()
    made = GlobalScheduler(ctx, CONFIG)
    made.handle("gcs", NodeChanged(info(1)))
    for node in (0, 2):
        made.handle(f"node:{node}", TasksMoved(node, 1, [spec(node + 1, 0, 4)], 1))
    assert given(ctx) == []
    made.handle("gcs", NodeChanged(info(0)))
    assert given(ctx) == [("node:1", 0, 4)]
    made.handle("gcs", NodeChanged(info(2, alive=False)))
    assert len(given(ctx)) == 1, "the GCS has those of the dead node placed again"


def test_a_cancellation_follows_stolen_ranges(busy: Node) -> None:
    """The GCS has named this node, since it had not heard of the theft yet."""
    cancel = CancelTask(array(1), 0, 102, False, True, nodes=(0,))
    assert busy.steal(FREE) == [(array(1), 2, 50)]
    busy.turn("global", cancel)
    assert busy.ctx.take(CancelTask, "global") == [cancel]
    busy.turn("global", cancel)
    assert not busy.ctx.take(CancelTask, "global"), "not for ever"


class Thieves(World):
    """A world that counts the elements that were stolen."""

    made: Thieves

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        Thieves.made = self

    @property
    def stolen(self) -> int:
        return sum(m.count for _, _, _, m in self.trace if isinstance(m, StealAnswer))


RUNS = {
    "healthy": system.healthy,
    "workers": system.worker_kills,
    "nodes": system.node_kills,
    "values": system.values_lost,
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("start", [0, pytest.param(100, marks=pytest.mark.slow)])
def test_programs_end_and_leave_nothing_while_nodes_steal(
    kind: str, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.control.programs.World", Thieves)
    monkeypatch.setattr("tests.control.programs.POLICIES", ("work-stealing",))
    stolen = 0
    for seed in range(start, start + (8 if start else 4)):
        RUNS[kind](seed)
        stolen += Thieves.made.stolen
    assert stolen > 50


def test_the_bound_on_a_look_is_that_of_starvation() -> None:
    """A theft from a long queue of single tasks looks at its head alone."""
    node = Node()
    node.turn("driver:0.0", SubmitTasks([spec(number) for number in range(1, 2_003)]))
    assert node.manager.ready.size == 2_000
    taken = node.steal(FREE)
    assert [name for name, *_ in taken] == [array(n) for n in range(3, 3 + stealing.LOOK_MAX // 2)]
    assert node.manager.ready.size == 2_000 - len(taken)
    assert node.manager.ready.peek(node.manager.ready.lanes()[0]).array == array(3 + len(taken))  # type: ignore[union-attr]
