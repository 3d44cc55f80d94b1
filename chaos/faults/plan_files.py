"""Plans in files: YAML, of which JSON is a part, with the line of each mistake.

`load` takes a path, or the name of one of the plans in `plans/`; `read` takes data, too.

Scalars are those of YAML 1.2's core schema, as in JSON: ``on`` and ``no`` are texts, ``1e-3`` is a
number. There are no tags, anchors and aliases, and no key may occur twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from raytwin.chaos.faults.actions import instead
from raytwin.chaos.faults.plan import Place, Plan, PlanError, from_data

READY = Path(__file__).parent / "plans"
"""The folder of the plans that have a name."""
SUFFIXES = (".yaml", ".yml", ".json")
DIGITS_MAX = 300
"""A longer integer is larger than any float."""

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(rf"[-+]?[0-9]{{1,{DIGITS_MAX}}}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class _Loader(yaml.SafeLoader):
    """Composes nodes: their values are made here, not by the loader's constructors."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise PlanError(f"line {event.start_mark.line + 1}: a plan has no aliases")
        return super().compose_node(parent, index)


def ready_plans() -> list[str]:
    """Return the names of the plans that have one."""
    return sorted(path.stem for path in READY.glob("*.yaml"))


def description(name: str) -> str:
    """Return the first line of a plan that has a name, a comment which says what it does."""
    with (READY / f"{name}.yaml").open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()


def read(given: Plan | Mapping[str, Any] | Sequence[Any] | Path | str) -> Plan:
    """Return the plan that a program gives: a path, a name, its data, or its steps' data.

    Raises PlanError for what is none.
    """
    if isinstance(given, Plan):
        return given
    if isinstance(given, str | Path):
        return load(given)
    return from_data(dict(given) if isinstance(given, Mapping) else {"steps": list(given)})


def load(path: Path | str) -> Plan:
    """Return the plan in a file, or the one of that name. Raises PlanError."""
    file = Path(path)
    if str(path) in ready_plans() and not file.exists():
        file = READY / f"{path}.yaml"
    elif not file.suffix and file.name == str(path) and not file.exists():
        raise PlanError(
            f"no plan {path}: give a file, or a name: {instead(str(path), ready_plans())}"
        )
    try:
        return parse(file.read_bytes())
    except OSError as error:
        raise PlanError(f"cannot read plan {file}: {error.strerror or error}") from error
    except PlanError as error:
        raise PlanError(f"{file}: {error}", error.place) from None


def parse(text: str | bytes) -> Plan:
    """Return the plan in the text of a file. Raises PlanError."""
    try:
        root = _compose(text)
        lines = {place: line + 1 for place, line in _lines(root, ())}
        data = _value(root, ())
    except RecursionError:
        raise PlanError("a plan is not nested so deep") from None
    try:
        return from_data(data)
    except PlanError as error:
        place = error.place
        while place not in lines:
            place = place[:-1]
        raise PlanError(f"line {lines[place]}: {error}", error.place) from None


def to_yaml(plan: Plan) -> str:
    """Return the plan as the text of a YAML file."""
    data = plan.to_data()
    blocks = []
    for key, rows in data.items():
        # A JSON object is YAML too, and has its floats in the one form that all parsers agree on.
        blocks.append("\n".join([f"{key}:", *(f"  - {json.dumps(row)}" for row in rows)]))
        if not rows:
            blocks[-1] = f"{key}: []"
    return "\n".join(blocks) + "\n"


def _compose(text: str | bytes) -> Node:
    """Return the root node of a text. Raises PlanError."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            text = text.replace("\t", " ")  # JSON has tabs between its parts, and only there
        root = yaml.compose(text, _Loader)
    except PlanError:
        raise
    except UnicodeDecodeError as error:
        raise PlanError(f"a plan is UTF-8, and byte {error.start + 1} of this is not") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        why = ", ".join(filter(None, (error.context, error.problem)))
        raise PlanError(f"{where}a plan is YAML or JSON, and this is not: {why}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise PlanError(f"a plan is YAML or JSON, and this is not: {error}") from None
    if root is None:
        raise PlanError('the file is empty: a plan is an object with steps: {"steps": [...]}')
    return root


def _lines(node: Node, place: Place) -> Iterator[tuple[Place, int]]:
    """Yield the line of each part: of a member of an object, the line of its key."""
    if not place:
        yield place, node.start_mark.line
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                yield (*place, key.value), key.start_mark.line
                yield from _lines(value, (*place, key.value))
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line
            yield from _lines(value, (*place, index))


def _value(node: Node, place: Place) -> Any:
    """Return the data of a node. Raises PlanError for tags and keys that occur twice."""
    if isinstance(node, MappingNode):
        _check_tag(node, "tag:yaml.org,2002:map")
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                raise PlanError(f"line {line}: a key is a text")
            name = _text(key.value)
            if name in found:
                raise PlanError(f"line {line}: the key {name!r} is there twice: keep one of them")
            found[name] = _value(value, (*place, name))
        return found
    if isinstance(node, SequenceNode):
        _check_tag(node, "tag:yaml.org,2002:seq")
        return [_value(each, (*place, index)) for index, each in enumerate(node.value)]
    assert isinstance(node, ScalarNode)
    _check_tag(node, "tag:yaml.org,2002:str")
    return _text(node.value) if node.style else _scalar(node.value)


def _check_tag(node: Node, usual: str) -> None:
    if node.tag != usual:
        raise PlanError(
            f"line {node.start_mark.line + 1}: a plan has no tags, and this is {node.tag}"
        )


def _scalar(text: str) -> Any:
    """Return the value of a scalar without quotes."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else _text(text)


def _text(text: str) -> str:
    r"""Return a text in which JSON's two escapes of one character, ``\ud83d\ude00``, are one."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
