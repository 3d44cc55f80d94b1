"""The machine: a snapshot continues like what it was taken of, whatever came before.

The commands are those of a random cluster, see `machine_commands`. Two machines are compared by
all that they send, so a field that a snapshot leaves out shows as soon as it
matters; and by their own snapshots, so it shows even if it does not.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any

import pytest

from raytwin.runtime.control.assembly import STATE_TYPES, make_machine
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.gcs.array_row import ArrayRow, Done
from raytwin.runtime.control.replication import snapshot
from raytwin.runtime.control.replication.state_machine import Machine
from tests.control.machine_commands import Commands

CONFIG = Config(policy="power-of-two", gcs_durable=True, task_history=True, gcs_memory_max=4_000)


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
        machine.apply(commands.draw(machine))
    machine.take_local()
    copy = make_machine(CONFIG)
    copy.restore(machine.snapshot())
    assert copy.snapshot() == machine.snapshot()
    for _ in range(200):
        command = commands.draw(machine)
        machine.apply(command)
        copy.apply(command)
        assert outputs(copy) == outputs(machine)
    assert copy.snapshot() == machine.snapshot()


@pytest.mark.slow
def test_these_commands_reach_every_part_of_the_state() -> None:
    """What stays empty in them could be forgotten without a sign."""
    filled: set[str] = set()
    names: set[str] = set()
    counts: Counter[str] = Counter()
    for seed in range(15):
        commands = Commands(seed)
        machine = make_machine(CONFIG)
        for _ in range(400):
            machine.apply(commands.draw(machine))
            gcs: Any = machine.components["gcs"]
            scheduler: Any = machine.components["global"]
            rows = [*gcs.arrays.values(), *gcs.actors.rows.values()]
            parts = [
                gcs, gcs.history, gcs.table, gcs.table.store, gcs.table.store.lineage,
                gcs.table.store.released, gcs.table.waiters, gcs.actors, gcs.nodes, gcs.functions,
                gcs.events,
                scheduler, scheduler.groups, scheduler._actors,
                *scheduler.groups.groups.values(),
            ]  # fmt: skip
            for part in [*parts, *rows]:
                for field, found in fields_of(part):
                    value = list(found) if isinstance(found, Ranges) else found
                    if isinstance(value, dict | list | set | deque | BoundedMap):
                        names.add(f"{type(part).__name__}.{field}")
                        if len(value):
                            filled.add(f"{type(part).__name__}.{field}")
        counts += machine.components["gcs"].events.counts  # type: ignore[attr-defined]
    # Those of the machine's own GCS are answered, and published, within the command.
    assert names - filled == {
        "GlobalScheduler._early",
        "GlobalScheduler._locating",
        "NodeTable._joined",
    }
    assert "ArrayRow.resubmitted" in filled
    for kind in ("task_retried", "task_reconstructed", "actor_restarted", "object_lost"):
        assert counts[kind] > 10, f"{kind}: {counts[kind]}"


def fields_of(part: Any) -> list[tuple[str, Any]]:
    names = vars(part) if hasattr(part, "__dict__") else type(part).__dict__
    names = getattr(part, "__struct_fields__", names)
    return [
        (name, getattr(part, name))
        for name in names
        if hasattr(part, name) and not name.startswith("__") and name not in snapshot.TRANSIENT
    ]


def test_other_bytes_than_a_state_are_refused() -> None:
    class Foreign:
        pass

    for value in (Foreign(), lambda: None, object(), {1: Foreign()}):
        with pytest.raises(TypeError):
            snapshot.dump(value, {}, STATE_TYPES)


def test_values_come_back_as_they_were() -> None:
    row = ArrayRow()
    row.finish(Done(0, 5, 1, ()))
    shared = [1, (2, b"3"), {"4": {5, 6}}]
    data = snapshot.dump([shared, shared, row, None, 1.5], {}, STATE_TYPES)
    found = snapshot.load(data, {}, STATE_TYPES)
    assert found[0] == shared
    assert found[0] is found[1]
    assert found[2].done[0].count == 5
    assert [done.node for done in found[2].ended(3)] == [1]
    large = {b"%d" % n: b"value" for n in range(100)}
    data = snapshot.dump([large, large], {}, STATE_TYPES)
    assert snapshot.load(data, {}, STATE_TYPES) == [large, large]


def test_a_snapshot_names_a_class_and_not_its_file() -> None:
    data = snapshot.dump([Ranges()], {}, STATE_TYPES)
    moved = type("Ranges", (Ranges,), {"__slots__": (), "__module__": "elsewhere"})
    types = snapshot.StateTypes()
    types.add(moved)
    [found] = snapshot.load(data, {}, types)
    assert type(found) is moved


def test_a_class_that_is_not_registered_is_refused_on_both_sides() -> None:
    none = snapshot.StateTypes()
    with pytest.raises(TypeError, match="Ranges is not registered"):
        snapshot.dump([Ranges()], {}, none)
    data = snapshot.dump([Ranges()], {}, STATE_TYPES)
    with pytest.raises(TypeError, match="names Ranges, which is not registered"):
        snapshot.load(data, {}, none)
    with pytest.raises(ValueError, match="two classes"):
        STATE_TYPES.add(type("Ranges", (), {}))


def test_a_timer_that_is_no_data_is_refused() -> None:
    machine = make_machine(CONFIG)
    ctx: Any = machine.components["gcs"].ctx  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="data"):
        ctx.after(1.0, lambda: None)
    with pytest.raises(TypeError, match="positional"):
        ctx.after(1.0, partial(machine.components["gcs"].end_turn, a=1))
