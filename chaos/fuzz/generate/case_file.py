"""A case as a JSON file: the cluster, the program, the plan, and what it has violated.

A seed means another case once the generator changes; a file stays what it is. Values that are the
defaults of their fields are left out. `parse` checks a file as far as its form: every operation has
fields of the right types. Raises CaseError with one line that says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from raytwin.chaos.faults.plan import PlanError, from_data
from raytwin.chaos.fuzz.generate.cases import Case
from raytwin.chaos.fuzz.programs.program import Body

PLAIN = (
    "seed", "nodes", "cpus", "store_bytes", "slots", "gpus", "direct_after", "policy",
    "heartbeat_timeout_s",
)  # fmt: skip
"""The fields of a `Case` that a file has as they are."""
KEYS = (*PLAIN, "lossless", "gcs", "timers", "program", "drivers", "steps", "failures")


class CaseError(ValueError):
    """A file is no case; the message says why in one line."""


def to_data(case: Case, failures: Sequence[str] = ()) -> dict[str, Any]:
    """Return a case, and what it has violated, as JSON data."""
    return {
        **{name: getattr(case, name) for name in PLAIN},
        "lossless": case.lossless,
        "gcs": case.gcs,
        "timers": case.timers,
        "failures": list(failures),
        **case.plan.to_data(),
        "program": _brief(case.program),
        "drivers": [_brief(body) for body in case.drivers],
    }


def write(path: Path, case: Case, failures: Sequence[str] = ()) -> None:
    """Write a case, one operation or step a line; a reader never sees half of it."""
    data = to_data(case, failures)
    lines = []
    for key, value in data.items():
        text = json.dumps(value)
        if key in ("steps", "failures"):
            text = _lines(value, "  ")
        elif key == "program":
            text = '{"ops": ' + _lines(value["ops"], "  ") + "}"
        lines.append(f"{json.dumps(key)}: {text}")
    new = path.with_suffix(".new")
    new.write_text("{" + ",\n ".join(lines) + "}\n", encoding="utf-8")
    new.replace(path)


def _lines(values: Sequence[Any], indent: str) -> str:
    return "[" + f",\n{indent}".join(map(json.dumps, values)) + "]"


def load(path: Path) -> Case:
    """Return the case in a file. Raises CaseError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CaseError(f"cannot read {path}: {error.strerror}") from None
    try:
        return parse(text)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def parse(text: str | bytes) -> Case:
    """Return the case in the text of a file. Raises CaseError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaseError(
            f"a case is JSON, and this is not: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(data, dict):
        raise CaseError("a case is an object, as `raytwin fuzz` writes it")
    for key in data:
        if key not in KEYS:
            raise CaseError(f"no key {key!r}: possible are {', '.join(KEYS)}")
    for key in ("seed", "nodes", "cpus", "program", "steps"):
        if key not in data:
            raise CaseError(f"it needs {key}, as `raytwin fuzz` writes it")
    given = {name: data[name] for name in KEYS if name in data and name != "failures"}
    try:
        plan = from_data({"steps": given.pop("steps")})
        case = msgspec.convert({"lossless": False, **given}, _CaseData)
    except (PlanError, msgspec.ValidationError, RecursionError) as error:
        raise CaseError(str(error)) from None
    return case.with_plan(plan)


class _CaseData(msgspec.Struct):
    """The data of a case's file, without the plan."""

    seed: int
    nodes: int
    cpus: int
    program: Body
    lossless: bool
    store_bytes: int = Case.store_bytes
    gcs: dict[str, Any] = {}
    slots: float = 0.0
    direct_after: int = Case.direct_after
    timers: dict[str, int | float] = {}
    drivers: tuple[Body, ...] = ()
    gpus: float = 0.0
    policy: str = Case.policy
    heartbeat_timeout_s: float = Case.heartbeat_timeout_s

    def with_plan(self, plan: Any) -> Case:
        return Case(plan=plan, **msgspec.structs.asdict(self))


def _brief(value: Any) -> Any:
    """Return a value of dataclasses as JSON data, without the fields that have their defaults."""
    if is_dataclass(value):
        found = ((each, getattr(value, each.name)) for each in fields(value))
        return {each.name: _brief(of) for each, of in found if of != _default(each)}
    if isinstance(value, tuple):
        return [_brief(each) for each in value]
    return value


def _default(field: Field[Any]) -> Any:
    return MISSING if field.default is MISSING else field.default
