"""The names of placement groups in demands, in resources and in tasks.

A committed bundle i of group g with 2 CPUs is ``CPU_group_<i>_<g>: 2`` and
``CPU_group_<g>: 2``. A task in the group demands those instead of ``CPU``
(`demand_in`), so that schedulers need to know nothing of groups. Every task in the
group also takes a little of ``bundle_group_<g>``, so that a task without demands runs
on one of the group's nodes, too.

A group's ID, in hexadecimal, begins with the number of its job.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytwin.runtime.control.core.ids import ARRAY_BYTES, JOB_BYTES
from raytwin.runtime.control.core.resources import UNIT, format_demand, parse_demand
from raytwin.runtime.control.messages import TaskSpec

HEX = frozenset("0123456789abcdef")
BUNDLE_UNITS = 1000.0
"""The amount of ``bundle_group_<g>`` that each bundle has."""
BUNDLE_UNITS_PER_TASK = 0.001
"""The amount of ``bundle_group_<g>`` that each task in the group takes."""


def demand_in(demand: str, group: str, index: int) -> str:
    """Return a demand in terms of a group's resources: of bundle `index`, or of any bundle if
    -1."""
    amounts: dict[str, float] = {}
    parts = [*parse_demand(demand), ("bundle", round(BUNDLE_UNITS_PER_TASK * UNIT))]
    for name, units in parts:
        amounts[f"{name}_group_{group}"] = units / UNIT
        if index >= 0:
            amounts[f"{name}_group_{index}_{group}"] = units / UNIT
    return format_demand(amounts)


def plain_amounts(demand: str) -> dict[str, float]:
    """Return the amounts of a demand by plain names, also if it is in terms of a group's."""
    amounts = {}
    for name, units in parse_demand(demand):
        plain = name.partition("_group_")[0] if is_of_group(name) else name
        if plain != "bundle" or plain == name:
            amounts[plain] = units / UNIT
    return amounts


def group_resources(bundle: Mapping[str, float], group: str, index: int) -> dict[str, float]:
    """Return the resources that a committed bundle adds to its node."""
    named: dict[str, float] = {}
    for name, amount in [*bundle.items(), ("bundle", BUNDLE_UNITS)]:
        named[f"{name}_group_{group}"] = amount
        named[f"{name}_group_{index}_{group}"] = amount
    return named


def is_of_group(resource: str) -> bool:
    """Whether a resource of this name belongs to a placement group."""
    group = resource.rpartition("_")[2]
    return "_group_" in resource and len(group) == 2 * ARRAY_BYTES and set(group) <= HEX


def group_of(spec: TaskSpec) -> str:
    """Return the ID of a task's group, an empty string for none."""
    return "" if spec.extra is None else spec.extra.group.partition("/")[0]


def job_of(group: str) -> str:
    """Return the job that a group belongs to, in hexadecimal as its own ID."""
    return group[: 2 * JOB_BYTES]
