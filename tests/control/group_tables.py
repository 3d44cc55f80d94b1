"""What tests of placement groups share: a group table alone, or in a global scheduler."""

from __future__ import annotations

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    BundlePrepared,
    CreateGroup,
    NodeChanged,
    NodeInfo,
    PrepareBundle,
)
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.control.scheduling.placement_groups import GroupTable
from tests.control.alone import Alone


class Table:
    """A group table alone, with two nodes of two CPUs."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.looks = 0
        """How often it has looked at what is free."""
        self.free: dict[int, dict[str, float]] = {0: {"CPU": 2.0}, 1: {"CPU": 2.0}}
        self.has: list[tuple[int, bool]] = []
        self.table = GroupTable(
            self.ctx,
            self._free,
            lambda: {0: {"CPU": 2.0}, 1: {"CPU": 2.0}},
            lambda node, bundle, named, there: self.has.append((node, there)),
            lambda node: 1,
        )

    def _free(self) -> dict[int, dict[str, float]]:
        self.looks += 1
        return {n: dict(free) for n, free in self.free.items()}

    def asked(self) -> list[tuple[int, int]]:
        """Return (node, bundle) of what was asked for since last time."""
        sent = [(to, m) for to, m in self.ctx.sent if isinstance(m, PrepareBundle)]
        self.ctx.take(PrepareBundle)
        return [(int(to.partition(":")[2]), m.index) for to, m in sent]

    def answer(self, node: int, index: int, ok: bool) -> None:
        group = self.table.groups.get("g")
        attempt = 0 if group is None else group.attempt
        self.table.on_prepared(BundlePrepared(node, "g", index, ok, attempt))

    @property
    def state(self) -> str:
        return str(self.table.rows()[0][5])


def named(job: int, number: int, name: str = "mine", detached: bool = False) -> CreateGroup:
    """Return the creation of a group of a job."""
    group = f"{job:04x}0000{number:016x}"
    return CreateGroup(group, name, [{"CPU": 1.0}], "PACK", detached)


def with_nodes(*resources: dict[str, float]) -> tuple[GlobalScheduler, Alone]:
    """Return a global scheduler that knows these nodes."""
    ctx = Alone()
    scheduler = GlobalScheduler(ctx, Config())
    for node, amounts in enumerate(resources):
        scheduler.handle("gcs", NodeChanged(NodeInfo(node, "host", 0, amounts)))
    return scheduler, ctx
