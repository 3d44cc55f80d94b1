"""Where a task should run: the values of the option ``scheduling_strategy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.api.placement_group import PlacementGroup


class NodeAffinitySchedulingStrategy:
    """Run on one node: there or nowhere, or if ``soft`` elsewhere once it is gone.

    ``node_id`` is a ``NodeID`` of `nodes()`. A hard one whose node is not there
    fails with TaskUnschedulableError.
    """

    def __init__(self, node_id: str, soft: bool) -> None:
        if not isinstance(node_id, str):
            raise TypeError(f"node_id is a string of nodes(), not {node_id!r}")
        self.node_id = node_id
        self.soft = bool(soft)

    def __repr__(self) -> str:
        return f"NodeAffinitySchedulingStrategy({self.node_id!r}, soft={self.soft})"


class PlacementGroupSchedulingStrategy:
    """Run in a placement group: in one bundle, or with -1 in any.

    ``placement_group_capture_child_tasks``: what the task submits runs in the
    group too, unless it says otherwise.
    """

    def __init__(
        self,
        placement_group: PlacementGroup,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks

    def __repr__(self) -> str:
        return (
            f"PlacementGroupSchedulingStrategy({self.placement_group!r},"
            f" {self.placement_group_bundle_index})"
        )


SchedulingStrategy = str | NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy | None
