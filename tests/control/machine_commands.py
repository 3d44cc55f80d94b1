"""Random commands for a machine of the GCS: what a cluster could lead to.

Nodes join, die, come back and report; task ranges with inputs, large values,
copies and releases; values that are put; objects that are asked for and gone;
parents that run again; actors that are rebuilt and save their state; placement
groups; functions, events, questions and keys. Commands are drawn with a look at
the machine that they are for, so that they speak of what is there.
"""

from __future__ import annotations

import random
from typing import Any

from raytwin.runtime.control.core.addresses import WORKERS_PER_INCARNATION
from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.ids import JOB_BYTES, array_id, object_id
from raytwin.runtime.control.gcs.actor_table import ActorRow, ActorTable
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    OK,
    ActorFailed,
    ActorInfo,
    ActorStarted,
    BundlePrepared,
    CallRecord,
    CancelTask,
    ClaimTasks,
    ClientGone,
    Command,
    CreateActors,
    CreateGroup,
    Event,
    ExportFunction,
    FetchFunction,
    FetchLineage,
    FindActor,
    FindTask,
    Frame,
    KillActor,
    KvGet,
    KvPut,
    Load,
    LoadChanged,
    LocateObjects,
    LogCalls,
    NodeInfo,
    NodeUnreachable,
    ObjectsMissing,
    PeerUnreachable,
    PlaceTasks,
    Query,
    RangeResult,
    RegisterNode,
    RemoveGroup,
    ResultsMissing,
    SaveActor,
    TaskExtra,
    TaskSpec,
    TaskUpdates,
    WatchActors,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.control.replication.state_machine import Machine, encode_frames
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler

NODES = 4
NODE_CPUS = 4.0
ARRAYS = 40
STEPS_S = [0.0, 0.001, 0.01, 0.2, 2.0]


class Commands:
    """Draws commands that a cluster could lead to."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.index = 0
        self.time_s = 0.0
        self.sequence: dict[str, int] = {}
        self.arrays = [array_id(b"parent", number) for number in range(ARRAYS)]
        self.actors = 0
        self.calls: list[tuple[bytes, bytes]] = []
        """(array, actor) of actors' calls."""
        self.groups = 0

    def draw(self, machine: Machine) -> Command:
        """Return the next command for a machine."""
        rng = self.rng
        self.index += 1
        self.time_s += rng.choice(STEPS_S)
        if rng.random() < 0.05:
            return Command(self.index, self.time_s, "", 0.0, 0, 0, b"")
        node = rng.randrange(NODES)
        client = "master" if rng.random() < 0.15 else f"node:{node}"
        self.sequence[client] = self.sequence.get(client, 0) + 1
        gcs, scheduler = machine.components["gcs"], machine.components["global"]
        assert isinstance(gcs, Gcs)
        assert isinstance(scheduler, GlobalScheduler)
        if client == "master":
            frames = [self._head_frame(client, node, gcs)]
        else:
            # Bundles are counted in the machine: one answer at a time.
            frames = [
                self._frame(client, node, gcs, scheduler, may_group=not number)
                for number in range(rng.randint(1, 3))
            ]
        acked = max(0, self.sequence[client] - rng.randint(0, 5))
        return Command(
            self.index, self.time_s, client, 0.0, self.sequence[client], acked,
            encode_frames(frames),
        )  # fmt: skip

    def _head_frame(self, client: str, node: int, gcs: Gcs) -> Frame:
        """Return what the failure detector has the master pass on."""
        rng = self.rng
        if rng.random() < 0.7:
            load = Load(rng.randint(0, 9), 0.01, 1e6, rng.randint(0, 9), {"CPU": NODE_CPUS})
            return Frame(client, "global", [LoadChanged(node, load)])
        self.sequence.pop(f"node:{node}", None)
        life = gcs.nodes.rows[node].incarnation if node in gcs.nodes.rows else 1
        messages = [NodeUnreachable(node, "gone", life), ClientGone(f"node:{node}", 0.0)]
        return Frame(client, "gcs", messages)

    def _frame(
        self, client: str, node: int, gcs: Gcs, scheduler: GlobalScheduler, may_group: bool
    ) -> Frame:
        rng = self.rng
        info = gcs.nodes.rows.get(node)
        life = info.incarnation if info is not None else 0
        if (info is None or not info.alive) and rng.random() < 0.7:
            joins = RegisterNode(
                NodeInfo(node, "host", 1, {"CPU": NODE_CPUS}, incarnation=life + 1)
            )
            return Frame(client, "gcs", [joins])
        owner = f"driver:{node}.{max(0, life - 1) * WORKERS_PER_INCARNATION}"
        kind = rng.random()
        if kind < 0.2:
            return Frame(client, "gcs", [self._actor_message(node, owner, gcs.actors)])
        if kind < 0.3 and may_group:
            return Frame(client, "global", [self._group_message(node, scheduler)])
        if kind < 0.65:
            to, message = self._task_message(node, life, owner)
            return Frame(client, to, [message])
        return Frame(client, "gcs", [self._other_message(node, life)])

    # -- tasks and objects -----------------------------------------------------

    def _spec(self, number: int, owner: str) -> TaskSpec:
        rng = self.rng
        deps = [
            object_id(self.arrays[rng.randrange(number)], rng.randint(0, 20), 0)
            for _ in range(rng.randint(0, 2) if number else 0)
        ]
        return TaskSpec(
            self.arrays[number], rng.randint(0, 20), rng.randint(1, 10), b"f", b"args", owner,
            deps=tuple(deps), retries=rng.choice([0, 2, 5, -1]), name=f"task{number}",
        )  # fmt: skip

    def _in_group(self, spec: TaskSpec) -> TaskSpec:
        """Return it, now and then in a group, which may be removed or not be there yet."""
        if self.rng.random() < 0.2:
            group = self._group(self.rng.randint(max(1, self.groups - 5), self.groups + 2))
            spec.demand, spec.extra = demand_in("", group, -1), TaskExtra(group=group)
        return spec

    def _task_message(self, node: int, life: int, owner: str) -> tuple[str, Any]:
        rng = self.rng
        number = rng.randrange(ARRAYS)
        spec = self._spec(number, owner)
        array, start, count = spec.array, spec.start, spec.count
        oid = object_id(array, rng.randint(start, start + count - 1), 0)
        large = (5,) * rng.randint(0, 1)
        done = [(array, at, 1, large) for at in range(start, start + count)] if large else [
            (array, start, count, large)
        ]  # fmt: skip
        put = array_id(b"put", rng.randrange(10))
        call, actor = rng.choice(self.calls) if self.calls else (put, b"")

        def updates(**rows: Any) -> tuple[str, Any]:
            empty: dict[str, Any] = {"added": [], "done": [], "copies": [], "released": []}
            return "gcs", TaskUpdates(node, **{**empty, **rows}, incarnation=life)

        draws: list[tuple[str, Any]] = [
            ("global", PlaceTasks([spec])),
            ("global", PlaceTasks([self._in_group(spec)])),
            updates(added=[spec]),
            updates(added=[spec], done=done),
            updates(done=done),
            updates(copies=[(oid, 7)]),
            updates(released=[array]),
            updates(puts=[(put, rng.choice([0, 9]))]),
            updates(released=[put]),
            updates(done=[(call, 0, 1, (9,))], calls=[(call, owner, actor)]),
            updates(released=[call]),
            ("gcs", LocateObjects([oid])),
            ("gcs", LocateObjects([oid, object_id(put, 0, 0), object_id(call, 0, 0)])),
            ("gcs", LocateObjects([oid], subscribe=False)),
            ("gcs", ResultsMissing(node, [(array, start, count)])),
            ("gcs", ObjectsMissing(rng.randrange(NODES), [oid])),
            ("gcs", ClaimTasks([spec])),
            ("gcs", CancelTask(array, start, count, False, False)),
        ]
        return rng.choice(draws)

    # -- actors ----------------------------------------------------------------

    def _actor_message(self, node: int, owner: str, table: ActorTable) -> Any:
        rng = self.rng
        rows = list(table.rows.values())
        if len(rows) < 3 or rng.random() < 0.1:
            return self._creation(owner, table)
        row = rng.choice(rows)
        actor, life = row.spec.array, row.incarnation
        if row.node >= 0 and rng.random() < 0.3:
            return ActorStarted(actor, life, row.node, rng.randint(0, 2))
        draws = [
            ActorFailed(actor, life, ActorDeath(DeathCause.WORKER_DIED)),
            ActorFailed(
                actor,
                max(0, life - 1),
                ActorDeath(DeathCause.WORKER_DIED),
                final=rng.random() < 0.2,
            ),
            WatchActors([actor, *list(table.dead)[:1]]),
            self._log(row, owner),
            self._log(row, owner),
            SaveActor(actor, life, row.saved + rng.randint(0, len(row.log)), b"state"),
            FetchLineage(actor, life),
            KillActor(
                actor,
                ActorDeath(DeathCause.KILLED),
                restart=rng.random() < 0.7,
                owner=rng.choice(["", owner]),
            ),
            FindActor(1, owner, "space", f"name{rng.randrange(4)}"),
        ]
        return rng.choice(draws)

    def _creation(self, owner: str, table: ActorTable) -> Any:
        rng = self.rng
        self.actors += 1
        name = f"name{rng.randrange(4)}" if rng.random() < 0.3 else ""
        info = ActorInfo(
            rng.choice([0, 2, -1]), name=name, namespace="space" if name else "",
            detached=rng.random() < 0.3, handle=b"handle",
        )  # fmt: skip
        actor = array_id(b"actor", self.actors)
        spec = TaskSpec(actor, 0, 1, b"c", b"args", owner, "CPU:0.1", name="Counter")
        spec.extra = TaskExtra(actor=info)
        return FindActor(1, owner, "space", name, spec) if name else CreateActors([spec])

    def _log(self, row: ActorRow, owner: str) -> LogCalls:
        actor = row.spec.array
        known = row.saved + len(row.log)
        calls = []
        for number in range(known, known + self.rng.randint(1, 3)):
            call = array_id(actor, number)
            task = TaskSpec(call, 0, 1, b"", b"args", owner, extra=TaskExtra(call=actor))
            calls.append(CallRecord(task, RangeResult(call, 0, 1, OK, b"value", 0)))
            self.calls.append((call, actor))
        return LogCalls(actor, row.incarnation, known, calls)

    # -- the rest --------------------------------------------------------------

    def _group_message(self, node: int, scheduler: GlobalScheduler) -> Any:
        rng = self.rng
        groups = list(scheduler.groups.groups.values())
        asked = [(g.id, i, n) for g in groups for i, n in g.trying.items() if i in g.unanswered]
        if asked and rng.random() < 0.8:
            group, index, at = rng.choice(asked)
            taken = sum(
                g.bundles[i]["CPU"]
                for g in groups
                for i, n in [
                    *g.nodes.items(),
                    *((i, n) for i, n in g.trying.items() if i in g.prepared),
                ]
                if n == at
            )
            room = taken + scheduler.groups.groups[group].bundles[index]["CPU"] <= NODE_CPUS
            return BundlePrepared(
                at,
                group,
                index,
                room and rng.random() < 0.9,
                scheduler.groups.groups[group].attempt,
            )
        if groups and rng.random() < 0.3:
            return RemoveGroup(rng.choice(groups).id)
        if rng.random() < 0.3:
            return Query("placement_groups", 1, f"driver:{node}.0")
        self.groups += 1
        strategy = rng.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
        bundles = [{"CPU": rng.choice([0.5, 1.0])} for _ in range(rng.randint(1, 3))]
        group = self._group(self.groups)
        name = rng.choice(["", f"name{rng.randrange(4)}"])
        detached, request = rng.random() < 0.2, int(bool(name))
        client = f"driver:{node}.0"
        return CreateGroup(group, name, bundles, strategy, detached, request, client)

    def _group(self, number: int) -> str:
        """Return the ID of a group of the same job as the arrays."""
        return self.arrays[0][:JOB_BYTES].hex() + f"{number:016x}"

    def _other_message(self, node: int, life: int) -> Any:
        rng = self.rng
        number = rng.randrange(1000)
        key = b"key%d" % rng.randint(0, 40)
        draws: list[Any] = [
            PeerUnreachable(node, life, rng.randrange(NODES), rng.randint(1, 3), "silent"),
            ExportFunction(key, b"blob"),
            FetchFunction(key),
            Event("kind", "subject"),
            Query("events", 1, f"driver:{node}.0"),
            Query("event_counts", 1, f"driver:{node}.0"),
            KvPut(key, b"value%d" % number, number),
            KvGet(key, number),
            FindTask(rng.choice(self.arrays), number, "driver:0.0"),
        ]  # fmt: skip
        return rng.choice(draws)
