"""What a node ran is in the timeline after it died, on both backends, each range once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import raytwin as ray
from runtime.control.context import Context
from runtime.control.membership import Membership
from runtime.control.messages import NodeInfo, TimelineRows
from runtime.control.timeline import RangeLog, TransferLog
from runtime.control.timeline_archive import ROWS_PER_BEAT, TimelineArchive

HEARTBEATS_S = 0.5
TASKS = 40


@pytest.fixture(params=["local", "sim"])
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    nodes = [{"CPU": 1}, {"CPU": 1, "there": 1}]
    yield ray.init(backend=request.param, nodes=nodes)
    ray.shutdown()


@ray.remote(resources={"there": 1}, num_cpus=0)
def work(number: int) -> int:
    ray.sleep(0.002)
    return number


@ray.remote
def size_of(value: bytes) -> int:
    return len(value)


def slices(name: str) -> Counter[str]:
    """Return how many of that name or category ran, by node."""
    found: Counter[str] = Counter()
    for event in ray.timeline() or []:
        if event["ph"] == "X" and (event["name"].endswith(name) or event["cat"] == name):
            found[event["pid"]] += event["args"].get("tasks", 1)
    return found


def test_a_killed_node_s_ranges_and_transfers_stay(session: Any) -> None:
    big = ray.put(bytes(1_000_000))
    assert ray.get(size_of.options(resources={"there": 1}).remote(big)) == 1_000_000
    ray.get([work.remote(number) for number in range(TASKS)])
    before = {name: slices(name) for name in ("work", "transfer")}
    assert before == {"work": {"node 1": TASKS}, "transfer": {"node 1": 1}}
    ray.sleep(HEARTBEATS_S)
    assert {name: slices(name) for name in before} == before, "a living node's are found once"
    session.cluster.kill_node(1)
    ray.sleep(HEARTBEATS_S)
    assert {name: slices(name) for name in before} == before


def test_both_incarnations_of_a_node_are_there(session: Any) -> None:
    ray.get([work.remote(number) for number in range(TASKS)])
    ray.sleep(HEARTBEATS_S)
    session.cluster.kill_node(1)
    session.cluster.restart_node(1)
    ray.sleep(HEARTBEATS_S)
    ray.get([work.remote(number) for number in range(TASKS)])
    ray.sleep(HEARTBEATS_S)
    assert slices("work") == {"node 1": 2 * TASKS}


# -- bounds --------------------------------------------------------------------


class Sent(Context):
    """Remembers what was sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []

    def now(self) -> float:
        return 0.0

    def send(self, to: str, message: Any) -> None:
        self.messages.append((to, message))


def archive(node: int, rows_max: int) -> tuple[TimelineArchive, RangeLog, Sent, Membership]:
    ctx, members = Sent(), Membership(node, 1)
    ranges = RangeLog(ctx, node, rows_max)
    made = TimelineArchive(ctx, node, members, rows_max, ranges, TransferLog(ctx, node))
    return made, ranges, ctx, members


def test_a_heartbeat_carries_so_many_rows_at_most_the_oldest_first() -> None:
    sender, ranges, ctx, members = archive(1, 10_000)
    assert ranges.unsent is not None
    ranges.unsent.extend(("f", number) for number in range(ROWS_PER_BEAT + 3))
    sender.on_heartbeat()
    assert not ctx.messages, "the keeper is not known yet"
    members.update(NodeInfo(0, "host", 1, {}, incarnation=1))
    for _ in range(3):
        sender.on_heartbeat()
    assert [(to, m.count) for to, m in ctx.messages] == [("node:0", ROWS_PER_BEAT), ("node:0", 3)]
    numbers = [row[1] for _, m in ctx.messages for row in msgspec.msgpack.decode(m.rows)]
    assert numbers == list(range(ROWS_PER_BEAT + 3))


def test_the_keeper_forgets_the_oldest_and_sends_nothing() -> None:
    keeper, ranges, ctx, members = archive(0, 10)
    assert ranges.unsent is None
    members.update(NodeInfo(1, "host", 1, {}, alive=False, incarnation=2))
    for incarnation in (1, 2, 3):
        rows = msgspec.msgpack.encode([[incarnation, number] for number in range(4)])
        keeper.on_rows("node:1", TimelineRows(incarnation, "timeline", 4, rows))
    keeper.on_heartbeat()
    assert not ctx.messages
    # The first batch was too much; the third is of an incarnation that may still live.
    assert [row[0] for row in keeper.rows("timeline")] == [2] * 4
