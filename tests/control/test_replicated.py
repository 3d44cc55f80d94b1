"""The machine: a snapshot continues like what it was taken of, whatever came before.

The commands are those of a random cluster: nodes that join, die and report, task
ranges, objects, functions, actors' timers, keys. Two machines are compared by
all that they send, so a field that a snapshot leaves out shows as soon as it
matters; and by their own snapshots, so it shows even if it does not.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from runtime.control import state
from runtime.control.config import Config
from runtime.control.gcs_machine import make_machine
from runtime.control.ids import array_id, object_id
from runtime.control.messages import (
    ClientGone,
    Command,
    Event,
    ExportFunction,
    FetchFunction,
    FindTask,
    Frame,
    Heartbeat,
    KvDelete,
    KvGet,
    KvPut,
    Load,
    LocateObjects,
    NodeInfo,
    NodeUnreachable,
    PlaceTasks,
    RegisterNode,
    TaskSpec,
    TaskUpdates,
)
from runtime.control.replicated import Machine, encode_frames
from runtime.control.tables import ArrayRow, Done

CONFIG = Config(policy="power-of-two", gcs_durable=True, task_history=True, gcs_memory_max=4_000)
NODES = 4


class Commands:
    """Draws commands that a cluster could lead to."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.index = 0
        self.time_s = 0.0
        self.sequence: dict[str, int] = {}
        self.arrays = [array_id(b"parent", number) for number in range(40)]
        self.done: dict[bytes, int] = {}

    def draw(self) -> Command:
        rng = self.rng
        self.index += 1
        self.time_s += rng.choice([0.0, 0.001, 0.01, 0.2, 2.0])
        if rng.random() < 0.05:
            return Command(self.index, self.time_s, "", 0.0, 0, 0, b"")
        node = rng.randrange(NODES)
        client = "master" if rng.random() < 0.05 else f"node:{node}"
        self.sequence[client] = self.sequence.get(client, 0) + 1
        if client == "master":
            messages: list[Any] = [NodeUnreachable(node, "gone"), ClientGone(f"node:{node}", 0.0)]
            self.sequence.pop(f"node:{node}", None)
            frames = [Frame(client, "gcs", messages)]
        else:
            frames = [self._frame(client, node) for _ in range(rng.randint(1, 3))]
        acked = max(0, self.sequence[client] - rng.randint(0, 5))
        return Command(
            self.index, self.time_s, client, 0.0, self.sequence[client], acked,
            encode_frames(frames),
        )  # fmt: skip

    def _frame(self, client: str, node: int) -> Frame:
        rng = self.rng
        array = rng.choice(self.arrays)
        start, count = rng.randint(0, 20), rng.randint(1, 10)
        oid = object_id(array, start, 0)
        spec = TaskSpec(array, start, count, b"f", b"args", f"driver:{node}.0", retries=2)
        load = Load(rng.randint(0, 9), 0.01, 1e6, rng.randint(0, 9), {"CPU": 1.0})
        number = rng.randrange(1000)
        key = b"key%d" % rng.randint(0, 40)
        if rng.random() < 0.1:
            spec.deps = (oid,)
            return Frame(client, "global", [PlaceTasks([spec])])
        message: Any = rng.choice([
            RegisterNode(NodeInfo(node, "host", 1, {"CPU": 2.0})),
            Heartbeat(node, rng.randint(1, 2), load),
            ExportFunction(key, b"blob"),
            FetchFunction(key),
            TaskUpdates(node, [spec], [], [], []),
            TaskUpdates(node, [], [(array, start, count, (5,) * rng.randint(0, 1))], [], []),
            TaskUpdates(node, [], [], [(oid, 7)], []),
            TaskUpdates(node, [], [], [], [array]),
            LocateObjects([oid]),
            LocateObjects([oid], subscribe=False),
            Event("kind", "subject"),
            KvPut(key, b"value%d" % number, number),
            KvGet(key, number),
            KvDelete(key, number),
            FindTask(array, number, "driver:0.0"),
        ])  # fmt: skip
        return Frame(client, "gcs", [message])


def outputs(machine: Machine) -> list[Any]:
    """Return all that the machine has to say, and forget what is its storage's."""
    told = [
        (client, s.born, s.applied, s.applied_index, s.sent,
         [(o.sequence, o.index, o.body) for o in s.outbox])
        for client, s in machine.sessions.items()
    ]  # fmt: skip
    return [machine.index, machine.time_s, machine.next_due_s(), told, machine.take_local()]


@pytest.mark.parametrize("seed", range(40))
def test_a_snapshot_continues_like_the_machine_it_was_taken_of(seed: int) -> None:
    commands = Commands(seed)
    machine = make_machine(CONFIG)
    for _ in range(commands.rng.randint(1, 400)):
        machine.apply(commands.draw())
    machine.take_local()
    copy = make_machine(CONFIG)
    copy.restore(machine.snapshot())
    assert copy.snapshot() == machine.snapshot()
    for _ in range(200):
        command = commands.draw()
        machine.apply(command)
        copy.apply(command)
        assert outputs(copy) == outputs(machine)
    assert copy.snapshot() == machine.snapshot()


def test_these_commands_reach_every_part_of_the_state() -> None:
    """What stays empty in them could be forgotten without a sign."""
    filled: set[str] = set()
    names: set[str] = set()
    for seed in range(15):
        commands = Commands(seed)
        machine = make_machine(CONFIG)
        for _ in range(400):
            machine.apply(commands.draw())
            for name, component in machine.components.items():
                for part in (component, getattr(component, "history", None)):
                    for field, value in vars(part).items() if part is not None else ():
                        if isinstance(value, dict | list | set) or hasattr(value, "maxlen"):
                            names.add(f"{name}.{type(part).__name__}.{field}")
                            if len(value):
                                filled.add(f"{name}.{type(part).__name__}.{field}")
    # Those of the machine's own GCS are answered within the command.
    assert names - filled == {"global.GlobalScheduler._locating"}


def test_what_is_no_state_is_refused() -> None:
    class Foreign:
        pass

    for value in (Foreign(), lambda: None, object(), {1: Foreign()}):
        with pytest.raises(TypeError):
            state.dump(value, {})


def test_values_come_back_as_they_were() -> None:
    row = ArrayRow()
    row.finish(Done(0, 5, 1, ()))
    shared = [1, (2, b"3"), {"4": {5, 6}}]
    found = state.load(state.dump([shared, shared, row, None, 1.5], {}), {})
    assert found[0] == shared
    assert found[0] is found[1]
    assert found[2].done[0].count == 5
    assert 3 in found[2].covered
    large = {b"%d" % n: b"value" for n in range(100)}
    assert state.load(state.dump([large, large], {}), {}) == [large, large]


def test_a_timer_that_is_no_data_is_refused() -> None:
    machine = make_machine(CONFIG)
    ctx: Any = machine.components["gcs"].ctx  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="data"):
        ctx.after(1.0, lambda: None)
    with pytest.raises(TypeError, match="positional"):
        ctx.after(1.0, partial(machine.components["gcs"].end_turn, a=1))
