"""The values of the option ``scheduling_strategy``, which choose the nodes that may run a task."""

from __future__ import annotations

from collections.abc import Sequence

from raytwin.runtime.api.ids import TaskID
from raytwin.runtime.api.modules import missing_names
from raytwin.runtime.api.options.checks import integer, text

__getattr__ = missing_names("util.scheduling_strategies")


class PlacementGroupID(TaskID):
    """The ID of a placement group, 12 bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PlacementGroupID({self.hex()})"


class GroupHandle:
    """The part of a placement group's handle that a strategy needs: its ID and its bundles.

    Its one subclass `PlacementGroup` also waits for groups, with tasks, which themselves need
    this module.
    """

    def __init__(self, group: bytes, bundles: Sequence[dict[str, float]]) -> None:
        self.id = PlacementGroupID(group)
        self._bundles = [dict(bundle) for bundle in bundles]

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The resources of each bundle."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def bundle_count(self) -> int:
        """The number of bundles."""
        return len(self._bundles)

    @property
    def is_empty(self) -> bool:
        """Whether this handle is of no group."""
        return not self._bundles


class NodeAffinitySchedulingStrategy:
    """Run on one node only; with ``soft``, on another node once it is gone.

    ``node_id`` is a ``NodeID`` of `nodes()`. Without ``soft`` a task whose node is gone
    fails with TaskUnschedulableError.
    """

    def __init__(self, node_id: str, soft: bool) -> None:
        self.node_id = text("node_id", node_id)
        self.soft = bool(soft)

    def __repr__(self) -> str:
        return f"NodeAffinitySchedulingStrategy({self.node_id!r}, soft={self.soft})"


class PlacementGroupSchedulingStrategy:
    """Run in a bundle of a placement group (index -1: in any bundle); None: in no group.

    ``placement_group_capture_child_tasks``: the task's children run in the group
    too, unless they have a strategy of their own. Raises TypeError for a group or an
    index of the wrong type.
    """

    def __init__(
        self,
        placement_group: GroupHandle | None,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        if not isinstance(placement_group, GroupHandle | None):
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
        """Whether tasks run in no placement group."""
        return self.placement_group is None or self.placement_group.is_empty

    def __repr__(self) -> str:
        return (
            f"PlacementGroupSchedulingStrategy({self.placement_group!r},"
            f" {self.placement_group_bundle_index})"
        )


SchedulingStrategy = str | NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy | None
