"""A fault plan: faults and their times, as data.

A plan is a list of steps, in Python or in a JSON file::

    {"steps": [
      {"at_s": 2.5, "action": "kill", "target": "node:1"},
      {"after": "node_died:1", "delay_s": 1, "action": "restart", "target": "node:1"},
      {"at_s": 5, "action": "latency", "target": "link:0>2", "parameters": {"latency_ms": 20}}
    ]}

``at_s`` is in seconds since the plan was applied, on the cluster's clock. ``after`` names
an event, ``node_added:<n>`` (node n has joined) or ``node_died:<n>`` (node n was declared
dead); the step follows the first occurrence of the event, ``delay_s`` seconds later.

The same plan applies to every backend; `check_backend` raises for a step that the
backend cannot carry out, before any step runs.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytwin.chaos.faults.targets import ACTIONS, TARGETS, is_amount

_EVENT = re.compile(r"(node_added|node_died):\d+")
_KEYS = ("at_s", "after", "delay_s", "action", "target", "parameters")


class PlanError(ValueError):
    """A plan is invalid; the message names the mistake and the valid values in one line."""


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

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise PlanError(f"no action {self.action!r}: {_instead(self.action, ACTIONS)}")
        if isinstance(self.target, str):
            object.__setattr__(self, "target", parse_target(self.target))
        if not hasattr(self.target, self.action):
            right = [kind for kind, t in TARGETS.items() if hasattr(t, self.action)]
            raise PlanError(f"{self.action} does not apply to a {self.target.kind}: it applies to"
                            f" {' and '.join(right)}")  # fmt: skip
        if (self.at_s is None) == (not self.after):
            raise PlanError(f"{self} needs either at_s or after, and not both")
        if self.at_s is not None and not is_amount(self.at_s):
            raise PlanError(f"at_s of {self.at_s!r}: give seconds, a number of at least 0")
        if self.after and not _EVENT.fullmatch(self.after):
            raise PlanError(f"no event {self.after!r}: give node_added:1 or node_died:1")
        if not is_amount(self.delay_s) or (self.delay_s and not self.after):
            raise PlanError(
                f"delay_s of {self.delay_s!r}: give seconds, a number of at least 0, with after"
            )
        try:
            checked = ACTIONS[self.action](self.parameters)
        except ValueError as error:
            raise PlanError(f"{self.action}: {error}") from None
        object.__setattr__(self, "parameters", checked)

    def __str__(self) -> str:
        given = "".join(f" {name}={value}" for name, value in self.parameters.items())
        return f"{self.action} {self.target}{given}"

    def to_data(self) -> dict[str, Any]:
        """Return the step in the form of a file."""
        data: dict[str, Any] = {"at_s": self.at_s} if self.at_s is not None else {}
        if self.after:
            data |= {"after": self.after}
        if self.delay_s:
            data |= {"delay_s": self.delay_s}
        data |= {"action": self.action, "target": str(self.target)}
        if self.parameters:
            data |= {"parameters": dict(self.parameters)}
        return data


class Plan:
    """Steps, in the order given."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps = tuple(steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and other.steps == self.steps

    def __hash__(self) -> int:
        return hash(tuple(map(str, self.steps)))

    def __repr__(self) -> str:
        return f"Plan({self.to_json()})"

    def check_backend(self, backend: str) -> None:
        """Raise PlanError if the backend cannot carry out a step."""
        for step in self.steps:
            if backend not in step.target.backends:
                raise PlanError(
                    f"{step} does not work on {backend}: it does on"
                    f" {' and '.join(step.target.backends)}"
                )

    def to_data(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return {"steps": [step.to_data() for step in self.steps]}

    def to_json(self) -> str:
        """Return the plan as the text of a file, one step per line."""
        lines = ",\n  ".join(json.dumps(step.to_data()) for step in self.steps)
        return f'{{"steps": [\n  {lines}\n]}}'


def parse_target(text: str) -> Any:
    """Return the target that a text names. Raises PlanError if there is no such target."""
    kind, _, rest = text.partition(":")
    if kind not in TARGETS:
        raise PlanError(f"no target {text!r}: {_instead(kind, TARGETS)}")
    target = TARGETS[kind].parse(rest)
    if target is None:
        raise PlanError(f"no target {text!r}: it is written {TARGETS[kind].form}")
    return target


def from_data(data: Any) -> Plan:
    """Return the plan from JSON data. Raises PlanError."""
    if not isinstance(data, dict) or set(data) != {"steps"} or not isinstance(data["steps"], list):
        raise PlanError('a plan is an object with one list: {"steps": [...]}')
    return Plan(_step(number, step) for number, step in enumerate(data["steps"], 1))


def _step(number: int, data: Any) -> Step:
    where = f"step {number}: "
    if not isinstance(data, dict):
        raise PlanError(f"{where}a step is an object with action, target and at_s or after")
    for key in data:
        if key not in _KEYS:
            raise PlanError(f"{where}no key {key!r}: {_instead(key, _KEYS)}")
    for key in ("action", "target"):
        if not isinstance(data.get(key), str):
            raise PlanError(f"{where}it needs {key}, a text")
    if not isinstance(data.get("after", ""), str):
        raise PlanError(f"{where}after is a text")
    if not isinstance(data.get("parameters", {}), dict):
        raise PlanError(f"{where}parameters is an object of names and values")
    try:
        return Step(**data)
    except PlanError as error:
        raise PlanError(f"{where}{error}") from None


def parse(text: str | bytes) -> Plan:
    """Return the plan in the text of a file. Raises PlanError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"a plan is JSON, and this is not: {' '.join(str(error).split())}"
        ) from None
    return from_data(data)


def load(path: Path) -> Plan:
    """Return the plan in a file. Raises PlanError."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise PlanError(f"cannot read plan {path}: {error.strerror or error}") from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def _instead(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}possible: {', '.join(names) or 'none'}"
