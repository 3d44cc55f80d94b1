"""A fault plan: faults and their times, as data.

A plan is a list of steps, and maybe of expectations, in Python or in a file (`plan_files`)::

    steps:
      - {at_s: 2.5, action: kill, target: "node:1"}
      - {name: back, after: "node_died:1", delay_s: 1, action: restart, target: "node:1"}
      - {after: back, action: latency, target: "link:0>2", parameters: {latency_ms: 20}}
    expect:
      - {metric: nodes_died, equals: 1}

``at_s`` is in seconds since the plan was applied, on the cluster's clock. ``after`` names
an event: ``node_added:<n>`` (node n has joined), ``node_died:<n>`` (node n was declared
dead), or the ``name`` of another step, which has ended then, even if it was impossible. The step
follows the first occurrence of the event, ``delay_s`` seconds later.

The same plan applies to every backend; `check_backend` raises for a step that the
backend cannot carry out, before any step runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from raytwin.chaos.faults.actions import ACTIONS, ParameterError, instead
from raytwin.chaos.faults.cluster_operations import CLUSTERS, PROXIED, backends_with
from raytwin.chaos.faults.expectations import Expectation
from raytwin.chaos.faults.parameters import is_amount
from raytwin.chaos.faults.targets import (
    TARGETS,
    Link,
    Part,
    Replica,
    Target,
    WholeCluster,
    is_replica_end,
)
from raytwin.runtime.control.core.addresses import chain_of

EVENT = r"(node_added|node_died):[0-9]+"
NAME = r"[A-Za-z][A-Za-z0-9_-]*"
_PARTS = ("steps", "expect")
SCHEMA_KEY = "$schema"
"""By this key a JSON file names its schema, for editors."""
_KEYS = ("name", "at_s", "after", "delay_s", "action", "target", "parameters")

Place = tuple[str | int, ...]
"""The keys and indices that lead to a part of a plan's data."""


class PlanError(ValueError):
    """A plan is invalid; the message names the mistake and the valid values in one line."""

    def __init__(self, text: str, place: Place = ()) -> None:
        super().__init__(" ".join(text.split()))
        self.place = place


@dataclass(frozen=True)
class Step:
    """One action at one time. Raises PlanError if the action is impossible."""

    action: str
    target: Any
    """A target of `targets`, or its text as in a file, such as ``node:3``."""
    at_s: float | None = None
    after: str = ""
    delay_s: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise PlanError(f"no action {self.action!r}: {instead(self.action, ACTIONS)}",
                            ("action",))  # fmt: skip
        if isinstance(self.target, str):
            object.__setattr__(self, "target", parse_target(self.target))
        if self.action not in self.target.operations:
            right = [kind for kind, t in TARGETS.items() if self.action in t.operations]
            raise PlanError(f"{self.action} does not apply to a {self.target.kind}: it applies to"
                            f" {' and '.join(right)}", ("target",))  # fmt: skip
        if self.name and not re.fullmatch(NAME, self.name):
            raise PlanError(
                f"no name {self.name!r}: a step's name is a letter, then letters, digits, - and _",
                ("name",),
            )
        if (self.at_s is None) == (not self.after):
            raise PlanError(f"{self} needs either at_s or after, and not both")
        if self.at_s is not None and not is_amount(self.at_s):
            raise PlanError(
                f"at_s of {self.at_s!r}: give seconds, a number of at least 0", ("at_s",)
            )
        if self.after and not re.fullmatch(f"{EVENT}|{NAME}", self.after):
            raise PlanError(f"no event {self.after!r}: {_EVENTS}", ("after",))
        if not is_amount(self.delay_s) or (self.delay_s and not self.after):
            raise PlanError(
                f"delay_s of {self.delay_s!r}: give seconds, a number of at least 0, with after",
                ("delay_s",),
            )
        try:
            checked = ACTIONS[self.action].check(self.parameters)
        except ParameterError as error:
            raise PlanError(f"{self.action}: {error}", ("parameters", error.name)) from None
        object.__setattr__(self, "parameters", checked)

    def __str__(self) -> str:
        given = "".join(f" {name}={value}" for name, value in self.parameters.items())
        return f"{self.action} {self.target}{given}"

    def sentence(self) -> str:
        """Return the step in words."""
        action = ACTIONS[self.action]
        what = action.sentence.format(self.target.words)
        what = " ".join(filter(None, (what, action.details(self.parameters))))
        if self.at_s is not None:
            when = f"At {self.at_s:,.10g} s"
        else:
            when = f"{self.delay_s:,.10g} s after" if self.delay_s else "After"
            event, _, node = self.after.partition(":")
            if not node:
                when += f" step {event!r}"
            else:
                when += (
                    f" node {node} {'has joined' if event == 'node_added' else 'was declared dead'}"
                )
        named = f" (step {self.name!r})" if self.name else ""
        return f"{when}, {what}{named}."

    def to_data(self) -> dict[str, Any]:
        """Return the step in the form of a file."""
        data: dict[str, Any] = {"name": self.name} if self.name else {}
        if self.at_s is not None:
            data |= {"at_s": self.at_s}
        if self.after:
            data |= {"after": self.after}
        if self.delay_s:
            data |= {"delay_s": self.delay_s}
        data |= {"action": self.action, "target": str(self.target)}
        if self.parameters:
            data |= {"parameters": _plain(self.parameters)}
        return data


_EVENTS = "give node_added:1, node_died:1 or the name of another step"


class Plan:
    """Steps, in the order given, and expectations. Raises PlanError for an impossible order."""

    def __init__(self, steps: Iterable[Step] = (), expect: Iterable[Expectation] = ()) -> None:
        self.steps = tuple(steps)
        self.expect = tuple(expect)
        self._check_order()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (other.steps, other.expect) == (self.steps, self.expect)

    def __hash__(self) -> int:
        return hash(tuple(map(str, self.steps)))

    def __repr__(self) -> str:
        return f"Plan({self.to_json()})"

    def _check_order(self) -> None:
        """Check that a name has one step, and that every step comes after all."""
        named: dict[str, Step] = {}
        for index, step in enumerate(self.steps):
            if step.name and named.setdefault(step.name, step) is not step:
                raise PlanError(
                    f"step {index + 1}: another step is named {step.name!r} already: give each a"
                    " name of its own",
                    ("steps", index, "name"),
                )
        for index, step in enumerate(self.steps):
            place = ("steps", index, "after")
            way = [step.after]
            while ":" not in way[-1] and way[-1]:
                if way[-1] not in named:
                    known = f", which are {', '.join(sorted(named))}" if named else ""
                    raise PlanError(
                        f"step {index + 1}: no event {way[-1]!r}: {_EVENTS}{known}", place
                    )
                way.append(named[way[-1]].after)
                if way[-1] in way[:-1]:
                    cycle = " after ".join(way[way.index(way[-1]) :])
                    raise PlanError(
                        f"step {index + 1}: no step of a cycle would ever be due: {cycle}; give"
                        " one of them at_s",
                        place,
                    )

    def check_backend(self, backend: str) -> None:
        """Raise PlanError if the backend cannot carry out a step."""
        if backend not in CLUSTERS:
            raise PlanError(f"no faults on backend {backend!r}: possible: {', '.join(CLUSTERS)}")
        proxied = self.proxied_on
        for index, step in enumerate(self.steps):
            able = backends_with(step.target.operations[step.action])
            if backend not in able:
                raise PlanError(
                    f"{step.action} {step.target} does not work on {backend}: it does on"
                    f" {' and '.join(able) or 'no backend yet'}",
                    ("steps", index, "action"),
                )
            for _, action, target, given in _parts_of(step):
                refusal = target.refusal(backend, action, given)
                if refusal:
                    raise PlanError(
                        f"{step.action} {step.target} does not work on {backend}: {refusal}",
                        ("steps", index, "target"),
                    )
            if "lose_packets" in step.target.operations[step.action] and backend in proxied:
                raise PlanError(
                    f"{step.action} {step.target} does not work on {backend}: packets are lost"
                    " where no link has a proxy, and this plan needs proxies",
                    ("steps", index, "action"),
                )

    @property
    def proxied_on(self) -> list[str]:
        """The backends on which a cluster needs proxies on its links for this plan."""
        parts = [part for step in self.steps for part in _parts_of(step)]
        return [
            backend
            for backend in PROXIED
            if any(on.needs_proxies(backend, action, given) for _, action, on, given in parts)
        ]

    def uses(self, operation: str) -> bool:
        """Whether a step uses an operation of the cluster."""
        return any(operation in step.target.operations[step.action] for step in self.steps)

    def nodes(self) -> int:
        """Return how many nodes a cluster needs at its start to have every node of the plan."""
        named = {number for step in self.steps for number in _nodes_of(step)}
        added = sum(step.action == "add_node" for step in self.steps)
        return max(1, max(named, default=0) + 1 - added)

    def needs(self) -> list[str]:
        """Return what a cluster needs to have all that the plan names, a sentence each."""
        found = [f"It needs {self.nodes()} nodes or more at its start."]
        parts = [part for step in self.steps for part in _parts_of(step)]
        ends = {end for *_, on, _ in parts if isinstance(on, Link) for end in astuple(on)}
        if any(on.kind == "replica" for *_, on, _ in parts) or any(map(is_replica_end, ends)):
            found.append("It needs replicas of the GCS: init(gcs_replicas=2), or more.")
        chains = [on.chain for *_, on, _ in parts if isinstance(on, Replica)]
        last = max([*chains, *map(chain_of, filter(is_replica_end, ends))], default=0)
        if last:
            found.append(f"It needs shards of the GCS: init(gcs_shards={max(2, last)}), or more.")
        killed = {on.kind for _, action, on, _ in parts if action == "kill"}
        if "head" in killed:
            found.append("It needs a head that comes back: init(gcs_storage=FILE).")
        if "scheduler" in killed:
            found.append("It needs a scheduler that comes back: gcs_replicas or gcs_storage.")
        return found

    def sentences(self) -> list[str]:
        """Return the plan in words, a sentence for each step and expectation."""
        numbered = [f"{n}. {step.sentence()}" for n, step in enumerate(self.steps, 1)]
        return numbered + [f"Expected: {each}." for each in self.expect]

    def to_data(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        data: dict[str, Any] = {"steps": [step.to_data() for step in self.steps]}
        return data | ({"expect": [each.to_data() for each in self.expect]} if self.expect else {})

    def to_json(self) -> str:
        """Return the plan as the text of a file, one step per line."""
        parts = [
            f'"{key}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n]"
            for key, rows in self.to_data().items()
        ]
        return "{" + ",\n".join(parts) + "}"


def _parts_of(step: Step) -> list[Part]:
    """Return the parts of a step, but for heals of what other steps have broken."""
    target: Target = step.target
    return target.expand(step.action, step.parameters, ())


def _nodes_of(step: Step) -> set[int]:
    target: Target = step.target
    if isinstance(target, WholeCluster):
        sets = step.parameters.get("sets", ())
        return {int(end[5:]) for part in sets for end in part if end.startswith("node:")}
    return target.nodes


def _plain(value: Any) -> Any:
    """Return a value without tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def parse_target(text: str) -> Any:
    """Return the target that a text names. Raises PlanError if there is no such target."""
    kind, _, rest = text.partition(":")
    if kind not in TARGETS:
        raise PlanError(f"no target {text!r}: {instead(kind, TARGETS)}", ("target",))
    target = TARGETS[kind].parse(rest)
    if target is None or (":" in text and not rest):
        raise PlanError(f"no target {text!r}: it is written {TARGETS[kind].form}", ("target",))
    return target


# -- plans from data -----------------------------------------------------------------


def from_data(data: Any) -> Plan:
    """Return the plan from JSON data. Raises PlanError."""
    if isinstance(data, dict):
        for key in data:
            if key not in (*_PARTS, SCHEMA_KEY):
                raise PlanError(f"no key {key!r}: {instead(str(key), _PARTS)}", (key,))
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
        raise PlanError('a plan is an object with a list of steps: {"steps": [...]}')
    expect = data.get("expect", [])
    if not isinstance(expect, list):
        raise PlanError('expect is a list: [{"metric": NAME, "min": 1}]', ("expect",))
    return Plan(
        [_part(_step, "step", ("steps", index), each) for index, each in enumerate(data["steps"])],
        [
            _part(_expectation, "expectation", ("expect", index), each)
            for index, each in enumerate(expect)
        ],
    )


def _part(make: Any, what: str, place: Place, data: Any) -> Any:
    """Return one part of a plan; an error says which one it is."""
    try:
        return make(data)
    except PlanError as error:
        where = (*place, *error.place)
        raise PlanError(f"{what} {int(place[1]) + 1}: {error}", where) from None


def _step(data: Any) -> Step:
    if not isinstance(data, dict):
        raise PlanError("a step is an object with action, target and at_s or after")
    for key in data:
        if key not in _KEYS:
            raise PlanError(f"no key {key!r}: {instead(str(key), _KEYS)}", (key,))
    for key in ("action", "target"):
        if not isinstance(data.get(key), str):
            raise PlanError(f"it needs {key}, a text", (key,))
    for key in ("after", "name"):
        if not isinstance(data.get(key, ""), str):
            raise PlanError(f"{key} is a text", (key,))
    if not isinstance(data.get("parameters", {}), dict):
        raise PlanError("parameters is an object of names and values", ("parameters",))
    return Step(**data)


def _expectation(data: Any) -> Expectation:
    keys = [each.name for each in fields(Expectation)]
    if not isinstance(data, dict):
        raise PlanError("an expectation is an object with metric and min, max or equals")
    for key in data:
        if key not in keys:
            raise PlanError(f"no key {key!r}: {instead(str(key), keys)}", (key,))
    try:
        return Expectation(**{"metric": "", **data})
    except ParameterError as error:
        raise PlanError(str(error), (error.name,)) from None
