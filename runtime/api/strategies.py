"""Where a task should run: the values of the option ``scheduling_strategy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.api.checks import integer, text
from runtime.api.modules import refuser

if TYPE_CHECKING:
    from runtime.api.placement_group import PlacementGroup

__getattr__ = refuser("util.scheduling_strategies")


class NodeAffinitySchedulingStrategy:
    """Run on one node: there or nowhere, or if ``soft`` elsewhere once it is gone.

    ``node_id`` is a ``NodeID`` of `nodes()`. A hard one whose node is not there
    fails with TaskUnschedulableError.
    """

    def __init__(self, node_id: str, soft: bool) -> None:
        self.node_id = text("node_id", node_id)
        self.soft = bool(soft)

    def __repr__(self) -> str:
        return f"NodeAffinitySchedulingStrategy({self.node_id!r}, soft={self.soft})"


class PlacementGroupSchedulingStrategy:
    """Run in a placement group: in one bundle, or with -1 in any; with None in none.

    ``placement_group_capture_child_tasks``: what the task submits runs in the
    group too, unless it says otherwise. Raises TypeError for what is no group and
    for an index that is no integer.
    """

    def __init__(
        self,
        placement_group: PlacementGroup | None,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        from runtime.api.placement_group import PlacementGroup

        if not isinstance(placement_group, PlacementGroup | None):
            raise TypeError(f"placement_group is a PlacementGroup, not {placement_group!r}")
        self.placement_group = placement_group
        self.placement_group_bundle_index = integer(
            "placement_group_bundle_index", placement_group_bundle_index, -1, note=" (any)"
        )
        if self.is_empty and self.placement_group_bundle_index >= 0:
            raise ValueError("placement_group_bundle_index needs a placement group")
        self.placement_group_capture_child_tasks = bool(placement_group_capture_child_tasks)

    @property
    def is_empty(self) -> bool:
        """Whether it says: in no placement group."""
        return self.placement_group is None or self.placement_group.is_empty

    def __repr__(self) -> str:
        return (
            f"PlacementGroupSchedulingStrategy({self.placement_group!r},"
            f" {self.placement_group_bundle_index})"
        )


SchedulingStrategy = str | NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy | None
