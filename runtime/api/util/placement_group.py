"""Placement groups: bundles of resources that are reserved together, in which tasks run."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.backend import ObjectRef, current
from raytwin.runtime.api.exceptions import GetTimeoutError, TaskPlacementGroupRemoved
from raytwin.runtime.api.modules import explains_missing_attributes, missing_names
from raytwin.runtime.api.options.checks import amounts, text
from raytwin.runtime.api.options.scheduling_strategies import (
    GroupHandle,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.api.runtime_context import group_of_caller
from raytwin.runtime.api.tasks import cancel, get, remote
from raytwin.runtime.control.core.ids import ARRAY_BYTES, job_number
from raytwin.runtime.control.core.resources import format_demand
from raytwin.runtime.control.scheduling.placement_groups import STRATEGIES

__getattr__ = missing_names("util.placement_group")


@explains_missing_attributes("PlacementGroup")
class PlacementGroup(GroupHandle):
    """A handle of a placement group; the program may send it to tasks."""

    @staticmethod
    def empty() -> PlacementGroup:
        """Return a handle of no group."""
        return PlacementGroup(bytes(ARRAY_BYTES), [])

    def ready(self) -> ObjectRef:
        """Return a reference to this handle that is ready once the group is reserved."""
        task = _return_group.options(scheduling_strategy=PlacementGroupSchedulingStrategy(self))
        ref: ObjectRef = task.remote(self)
        return ref

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Wait until the group is reserved; return whether it is."""
        ref = self.ready()
        try:
            get(ref, timeout=timeout_seconds)
        except GetTimeoutError:
            cancel(ref)
            return False
        except TaskPlacementGroupRemoved:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self._bundles})"

    def __reduce__(self) -> Any:
        return PlacementGroup, (self.id.binary(), self._bundles)


@remote(num_cpus=0, name="placement_group_ready")
def _return_group(group: PlacementGroup) -> PlacementGroup:
    return group


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
) -> PlacementGroup:
    """Reserve bundles of resources, all or none; `PlacementGroup.wait` waits until they are.

    ``strategy``: PACK and SPREAD put bundles on few or many nodes if possible;
    STRICT_PACK puts all on one node, STRICT_SPREAD each on a node of its own, or the
    group waits. A group ends with its driver's job, unless its ``lifetime`` is
    ``"detached"``; only that job knows its name, all jobs know a detached group's. Raises
    ValueError for impossible bundles or strategies, or a name that another
    group has, TypeError for amounts that are no numbers or names that are no strings.
    """
    if not isinstance(bundles, list) or not bundles:
        raise ValueError(f"bundles is a list of at least one dict of amounts, not {bundles!r}")
    for bundle in bundles:
        if not isinstance(bundle, dict) or not any(bundle.values()):
            raise ValueError(f"a bundle is a dict of amounts above 0, not {bundle!r}")
    checked = [amounts("a bundle", bundle) for bundle in bundles]
    for bundle in checked:
        format_demand(bundle)
    strategy, name = text("strategy", strategy or "PACK"), text("name", name or "")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    if lifetime not in (None, "detached"):
        raise ValueError(f"lifetime is None or 'detached', not {lifetime!r}")
    held = [{n: float(a) for n, a in bundle.items() if a} for bundle in checked]
    return PlacementGroup(
        current().create_group(name, held, strategy, bool(lifetime == "detached")), held
    )


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Release a group's resources; tasks in it end with TaskPlacementGroupRemoved.

    Another job's group stays unless it is detached; the event log has an event ``refused`` then.
    """
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group takes a PlacementGroup, not {placement_group!r}")
    current().remove_group(placement_group.id.binary())


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group of that name. Raises ValueError if there is none."""
    rows = [row for row in _visible_groups("groups_there") if row[1] == placement_group_name != ""]
    if not rows:
        raise ValueError(f"there is no placement group {placement_group_name!r}")
    # The job's own group takes precedence over a detached one of another job.
    row = min(rows, key=lambda row: bool(row[6]))
    return PlacementGroup(bytes.fromhex(row[0]), row[2])


def _visible_groups(kind: str) -> list[Any]:
    """Return the rows of the groups of the calling code's job, and of all detached groups."""
    here = current().job_number
    return [
        row for row in current().query(kind) if row[6] or job_number(bytes.fromhex(row[0])) == here
    ]


def get_current_placement_group() -> PlacementGroup | None:
    """Return the running task's or actor's placement group, None outside of any."""
    group = group_of_caller().partition("/")[0]
    rows = [row for row in _visible_groups("groups") if row[0] == group] if group else []
    return PlacementGroup(bytes.fromhex(group), rows[0][2]) if rows else None


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return a group's row of the table, or without an argument {ID: row} of all groups.

    All groups are those of the calling code's job and detached ones.

    Keys as in Ray: ``placement_group_id``, ``name``, ``bundles``,
    ``bundles_to_node_id``, ``strategy``, ``state`` (PENDING, CREATED,
    RESCHEDULING or REMOVED), and ``stats``. A bundle without a node has the node ID ""; one of a
    removed group has the node on which it was. An unknown group's row is empty.

    The stats: ``scheduling_state`` (INFEASIBLE, if even empty nodes could not take the bundles,
    NO_RESOURCES, SCHEDULING_STARTED, FINISHED or REMOVED), ``end_to_end_creation_latency_ms``,
    ``scheduling_latency_ms`` of the attempt that succeeded, both 0 until then;
    ``scheduling_attempt`` (there is one each 100 ms, and when a node joins, also for what is
    infeasible), ``highest_retry_delay_ms``.
    """
    table = {
        group: {
            "placement_group_id": group,
            "name": name,
            "bundles": dict(enumerate(bundles)),
            "bundles_to_node_id": {
                index: str(nodes.get(str(index), "")) for index in range(len(bundles))
            },
            "strategy": strategy,
            "state": state,
            "stats": {
                "end_to_end_creation_latency_ms": creation_s * 1000,
                "scheduling_latency_ms": placement_s * 1000,
                "scheduling_attempt": attempts,
                "highest_retry_delay_ms": retry_s * 1000,
                "scheduling_state": scheduling,
            },
        }
        for group, name, bundles, nodes, strategy, state, _, stats in _visible_groups("groups")
        for scheduling, creation_s, placement_s, attempts, retry_s in [stats]
    }
    return table if placement_group is None else table.get(placement_group.id.hex(), {})
