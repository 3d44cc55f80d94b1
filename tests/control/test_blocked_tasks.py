"""How many tasks of one class a node lets wait at the same time."""

from __future__ import annotations

from raytwin.runtime.control.local_scheduler.blocked_tasks import DOUBLINGS_MAX, STALL_S
from raytwin.runtime.control.messages import (
    Blocked,
    ExportFunction,
    RunTasks,
    StartWorker,
    SubmitTasks,
    TakenBack,
    TaskSpec,
    Unblocked,
    WorkerDied,
    WorkerReady,
)
from tests.control.alone import array, spec
from tests.control.one_node import DRIVER, W1, W2, Node


class Parents(Node):
    """A node whose workers start at once; each task that it starts blocks, if told so."""

    def __init__(self, cpus: int = 1) -> None:
        super().__init__(cpus)
        self.turn(DRIVER, ExportFunction(b"g", b"blob"))
        self.begun: list[tuple[str, TaskSpec]] = []
        """The worker and the range of each task that has begun."""
        self.blocked: list[str] = []

    def run(self, *, blocking: bool = True) -> None:
        """Answer all that the node has sent, until it sends nothing more."""
        while self.ctx.sent:
            sent, self.ctx.sent = self.ctx.sent, []
            for to, message in sent:
                if isinstance(message, StartWorker):
                    self.turn(message.worker, WorkerReady(1))
                elif isinstance(message, RunTasks):
                    first, *rest = (assignment.spec for assignment in message.tasks)
                    self.begun.append((to, first))
                    if blocking:
                        rows = [(s.array, s.start, s.count) for s in rest]
                        if first.count > 1:
                            rows.insert(0, (first.array, first.start + 1, first.count - 1))
                        self.turn(to, TakenBack(rows), Blocked())
                        self.blocked.append(to)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a turn for each timer."""
        end_s = self.ctx.time_s + seconds
        while due := [t.due_s for t in self.ctx.timers if t.due_s <= end_s and not t.cancelled]:
            self.ctx.pass_time(max(0.0, min(due) - self.ctx.time_s))
            self.scheduler.end_turn()
            self.run()
        self.ctx.pass_time(end_s - self.ctx.time_s)


def workers_of(node: Node) -> int:
    return len(node.scheduler.dispatcher.workers)


def test_a_cpu_that_a_parent_lends_is_for_its_child() -> None:
    node = Node(1)
    node.turn(DRIVER, SubmitTasks([spec(number) for number in range(1, 5)]))
    given = node.given(W1)
    back = [row[:3] for row in given[1:]]
    node.turn(W1, SubmitTasks([spec(9, owner=W1, depth=1)]), TakenBack(back), Blocked())
    node.turn(W2, WorkerReady(2))
    assert [row[0] for row in node.given(W2)] == [array(9)]
    # Nor does another parent begin between the child's end and the parent's.
    node.done(W2, (9, 0, 1))
    assert node.given() == []
    node.turn(W1, Unblocked())
    node.done(W1, (1, 0, 1))
    assert array(2) in [row[0] for row in node.given()]


def test_other_functions_may_start_where_as_many_of_one_are_blocked() -> None:
    node = Parents()
    consumers = [spec(number) for number in range(1, 50)]
    node.turn(DRIVER, SubmitTasks([*consumers, spec(99, function=b"g")]))
    node.run()
    assert [s.array for _, s in node.begun] == [array(1), array(99)]
    assert workers_of(node) == 2


def test_workers_for_tasks_that_wait_for_one_another_are_few_and_come_ever_later() -> None:
    for cpus in (1, 2, 8):
        node = Parents(cpus)
        node.turn(DRIVER, SubmitTasks([spec(1, 0, 1000)]))
        node.run()
        assert cpus <= len(node.blocked) < 2 * cpus
        for _ in range(6):
            before, began_s = len(node.blocked), node.ctx.time_s
            wait_s = STALL_S * 2 ** (before // cpus - 1)
            while len(node.blocked) == before:
                node.pass_time(wait_s / 20)
            assert wait_s * 0.9 < node.ctx.time_s - began_s < wait_s * 1.1
            assert len(node.blocked) <= before + cpus
        assert workers_of(node) <= len(node.blocked) + cpus


def test_all_begin_in_the_end_if_all_wait_for_one_another() -> None:
    for cpus in (1, 3):
        node = Parents(cpus)
        node.turn(DRIVER, SubmitTasks([spec(number) for number in range(1, 31)]))
        node.run()
        node.pass_time(30 * STALL_S * 2**DOUBLINGS_MAX)
        assert len(node.begun) == 30


def test_siblings_of_a_task_that_asks_again_and_again_get_their_turn() -> None:
    """It is blocked for moments only, which never add up to a wait."""
    node = Parents()
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2)]))
    node.run()
    for _ in range(10):
        node.pass_time(STALL_S / 8)
        node.turn(W1, Unblocked())
        node.pass_time(STALL_S / 2)
        node.turn(W1, Blocked())
        node.run()
    assert [s.array for _, s in node.begun] == [array(1), array(2)]


def test_a_class_is_open_again_when_a_blocked_task_has_died() -> None:
    node = Parents()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=0), spec(2)]))
    node.run()
    assert [s.array for _, s in node.begun] == [array(1)]
    node.turn("pool:0", WorkerDied(W1, "it crashed"))
    node.run()
    assert [s.array for _, s in node.begun] == [array(1), array(2)]


def test_tasks_that_take_no_cpu_are_not_limited() -> None:
    node = Parents()
    node.turn(DRIVER, SubmitTasks([spec(number, demand="") for number in range(1, 31)]))
    node.run()
    assert len(node.blocked) == 30
