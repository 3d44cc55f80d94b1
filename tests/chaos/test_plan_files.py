"""Plans in files: YAML and JSON, the lines of mistakes, the schema, the plans with names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.chaos.faults import plan_schema
from raytwin.chaos.faults.actions import ACTIONS
from raytwin.chaos.faults.expectations import Expectation
from raytwin.chaos.faults.parameters import KINDS
from raytwin.chaos.faults.plan import Plan, PlanError, Step, from_data
from raytwin.chaos.faults.plan_files import load, parse, ready_plans, to_yaml
from raytwin.chaos.faults.targets import TARGETS

VALIDATOR = jsonschema.Draft7Validator(plan_schema.schema())

YAML = """\
# yaml-language-server: $schema=plan.schema.json
steps:
  - at_s: 1.5
    action: kill
    target: node:1
    name: on  # a text, as in YAML 1.2
  - {after: on, delay_s: 1e-3, action: latency, target: "link:0>1", parameters: {latency_ms: 2}}
expect:
  - {metric: nodes_died, max: 1}
"""


def test_yaml() -> None:
    assert parse(YAML).to_data() == {
        "steps": [
            {"name": "on", "at_s": 1.5, "action": "kill", "target": "node:1"},
            {"after": "on", "delay_s": 0.001, "action": "latency", "target": "link:0>1",
             "parameters": {"latency_ms": 2}},
        ],
        "expect": [{"metric": "nodes_died", "max": 1}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("action: kill", "action: kil", "line 4: step 1: no action 'kil'"),
        ("target: node:1", "target: nod:1", "line 5: step 1: no target 'nod:1'"),
        ("at_s: 1.5", "at_s: soon", "line 3: step 1: at_s of 'soon'"),
        ("    target: node:1\n", "", "line 3: step 1: it needs target"),
        ("after: on", "after: off", "line 7: step 2: no event 'off'"),
        ("latency_ms: 2", "latency_ms: two", "line 7: step 2: latency: give latency_ms"),
        ("max: 1", "maximum: 1", "line 9: expectation 1: no key 'maximum': did you mean 'max'"),
        ("expect:", "expct:", "line 8: no key 'expct': did you mean 'expect'"),
        ("steps:", "stepz:", "line 2: no key 'stepz': did you mean 'steps'"),
        (
            "{metric: nodes_died, max: 1}",
            "metric: nodes_died\n    max: many",
            "line 10: expectation 1: give max, a number",
        ),
        ("{metric: nodes_died, max: 1}", "{metric: nodes_died}", "line 9: expectation 1: it needs"),
        (
            'action: latency, target: "link:0>1", parameters: {latency_ms: 2}',
            "action: lose, target: cluster, parameters: {kind: HeartBeat, probability: 1}",
            "line 7: step 2: lose: give kind, the class of a control-plane message, such as"
            " Heartbeat, or any: did you mean 'Heartbeat'?",
        ),
        ("    action: kill", "    at_s: 2", "line 4: the key 'at_s' is there twice"),
        ("1.5", "!!python/name:os.system x", "line 3: a plan has no tags"),
        ("1.5", "&x 1\n    name: *x", "line 4: a plan has no aliases"),
        ("{metric", "{{metric", "line 10, column 1: a plan is YAML or JSON"),
        ("    action: kill", "\taction: kill", "line 4, column 1: a plan is YAML or JSON"),
        ("    action: kill", "    [a]: kill", "line 4: a key is a text"),
    ],
)
def test_a_mistake_gets_its_line(old: str, new: str, says: str) -> None:
    assert old in YAML
    with pytest.raises(PlanError) as caught:
        parse(YAML.replace(old, new, 1))
    assert str(caught.value).startswith(says)
    assert len(str(caught.value).splitlines()) == 1


def test_lines_of_json_are_right_with_tabs_too() -> None:
    text = '{\n\t"steps": [\n\t\t{"at_s":\t1, "action": "kil", "target": "node:1"}\n\t]\n}\n'
    with pytest.raises(PlanError, match="line 3: step 1: no action 'kil'"):
        parse(text)
    assert parse(text.replace("kil", "kill")) == Plan([Step("kill", "node:1", 1)])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"steps": 3}', '{"steps": [], "x": 1}', "}{", "--- a\n--- b", "[" * 9999,
     b"\xff\xfe\x00", "a: \x00", "steps: [] #\ud800"],
)  # fmt: skip
def test_other_texts_than_a_plan_are_refused(text: str | bytes) -> None:
    with pytest.raises(PlanError) as caught:
        parse(text)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read plan"):
        load(tmp_path / "none.json")
    (tmp_path / "plan.json").write_text('{"steps": [{"at_s": 1}]}')
    with pytest.raises(PlanError, match=r"plan\.json: line 1: step 1: it needs action"):
        load(tmp_path / "plan.json")


def test_a_plan_of_a_wrong_name() -> None:
    with pytest.raises(PlanError, match="did you mean 'rolling'"):
        load("roling")


@pytest.mark.parametrize("name", ready_plans())
def test_the_plans_with_names_are_plans(name: str) -> None:
    plan = load(name)
    assert plan.sentences()
    VALIDATOR.validate(plan.to_data())


def test_the_schemas_file_is_what_the_code_gives() -> None:
    jsonschema.Draft7Validator.check_schema(plan_schema.schema())
    assert plan_schema.FILE.read_text(encoding="utf-8") == plan_schema.text(), (
        "python -m raytwin.chaos.faults.plan_schema writes it anew"
    )


@pytest.mark.parametrize(
    "step",
    [
        {"at_s": 1, "action": "kill", "target": "link:1>2"},
        {"at_s": 1, "action": "latency", "target": "link:1>2"},
        {"at_s": 1, "after": "node_died:1", "action": "kill", "target": "node:1"},
        {"at_s": 1, "action": "kill", "target": "node:1", "parameters": {"hard": True}},
        {"at_s": "1", "action": "kill", "target": "node:1"},
        {"at_s": 1, "delay_s": 2, "action": "kill", "target": "node:1"},
        {"at_s": 1, "action": "cut", "target": "link:1>1"},
        {"at_s": 1, "action": "cut", "target": "link:1>node:01"},
        {"at_s": 1, "action": "cut", "target": "link:head>head"},
        {"at_s": 1, "action": "cut", "target": "link:replica:0.1>replica:0.1"},
        {"at_s": 1, "action": "kill", "target": "nodes:1,2,1"},
        {"at_s": 1, "action": "kill", "target": "node:1234567890"},
        {
            "at_s": 1,
            "action": "partition",
            "target": "cluster",
            "parameters": {"sets": [["head", "head"], ["node:1"]]},
        },
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(step: Any) -> None:
    with pytest.raises(PlanError):
        from_data({"steps": [step]})
    assert not VALIDATOR.is_valid({"steps": [step]})


@pytest.mark.parametrize(
    "step",
    [
        {"at_s": 1, "action": "cut", "target": "link:1>11"},
        {"at_s": 1, "action": "cut", "target": "link:replica:0.1>replica:1.1"},
        {"at_s": 1, "action": "kill", "target": "nodes:1,11,10,0"},
        {"at_s": 1, "action": "memory_pressure", "target": "node:1", "parameters": {"nbytes": 1e6}},
    ],
)
def test_the_schema_allows_what_the_parser_allows(step: Any) -> None:
    from_data({"steps": [step]})
    assert VALIDATOR.is_valid({"steps": [step]})


def test_a_json_file_names_its_schema() -> None:
    """An editor reads that, and nobody else does."""
    data = {"$schema": "plan.schema.json", "steps": []}
    assert from_data(data) == Plan()
    assert VALIDATOR.is_valid(data)


seconds = st.floats(0, 1e6, allow_nan=False)
numbers = st.integers(0, 99)
ends = st.one_of(
    st.builds("{}".format, numbers),
    st.just("head"),
    st.builds("replica:{}.{}".format, numbers, numbers),
)
endpoints = ends.map(lambda end: f"node:{end}" if end.isdigit() else end)
targets = {
    "node": st.builds("node:{}".format, numbers),
    "nodes": st.lists(numbers, min_size=1, max_size=4, unique=True).map(
        lambda many: f"nodes:{','.join(map(str, many))}"
    ),
    "worker": st.builds("worker:{}.{}".format, numbers, numbers),
    "link": st.tuples(ends, ends)
    .filter(lambda pair: pair[0] != pair[1])
    .map(lambda pair: f"link:{pair[0]}>{pair[1]}"),
    "actor": st.builds("actor:{}".format, numbers),
    "replica": st.builds("replica:{}.{}".format, numbers, numbers),
    "cluster": st.just("cluster"),
    "head": st.just("head"),
    "scheduler": st.just("scheduler"),
}
values = {
    "latency_ms": seconds,
    "jitter_ms": seconds,
    "delay_ms": seconds,
    "bytes_per_s": st.floats(1, 1e9),
    "factor": st.floats(0.1, 10),
    "over_s": st.floats(0.1, 10),
    "nbytes": st.integers(0, 1 << 40),
    "seed": numbers,
    "skew_ms": st.floats(-1e6, 1e6),
    "one_way": st.booleans(),
    "probability": st.floats(0, 1, exclude_min=True, exclude_max=True),
    # YAML takes no key of over 1,024 characters, and an escape has up to twelve.
    "resources": st.dictionaries(st.text(min_size=1, max_size=80), seconds, min_size=1),
    "sets": st.lists(endpoints, min_size=2, max_size=5, unique=True).map(
        lambda found: [found[:1], found[1:]]
    ),
}


@st.composite
def steps(draw: Any) -> Step:
    kind = draw(st.sampled_from(sorted(TARGETS)))
    action = draw(st.sampled_from(sorted(TARGETS[kind].operations)))
    kinds = st.sampled_from(["rst", "fin"] if action == "reset" else KINDS)
    parameters = {
        name: draw(kinds if name == "kind" else values[name])
        for name, parameter in ACTIONS[action].parameters.items()
        if parameter.required or draw(st.booleans())
    }
    target = draw(targets[kind])
    if draw(st.booleans()):
        return Step(action, target, draw(seconds), parameters=parameters)
    after = draw(st.sampled_from(["node_died:3", "node_added:0"]))
    return Step(action, target, None, after, draw(seconds), parameters)


expectations = st.builds(
    Expectation, st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.lists(steps(), max_size=8), st.lists(expectations, max_size=2))
def test_a_plan_comes_back_from_its_file(found: list[Step], expect: list[Expectation]) -> None:
    plan = Plan(found, expect)
    assert from_data(plan.to_data()) == plan
    assert parse(plan.to_json()) == plan
    assert parse(to_yaml(plan)) == plan
    assert len(plan.sentences()) == len(found) + len(expect)
    VALIDATOR.validate(plan.to_data())


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
words = st.sampled_from(
    ["kill", "node:1", "latency", "link:0>1", "node_died:1", "pause", "nodes:1,2", "a", "cluster",
     "partition", "sets", "kind", "probability", "lose", "any"]
)  # fmt: skip
nearly_steps = st.dictionaries(
    st.sampled_from(["at_s", "after", "delay_s", "action", "target", "parameters", "name"]),
    json_values | words | st.dictionaries(words, json_values | words),
)


@given(st.lists(nearly_steps, max_size=3) | json_values)
def test_any_data_gives_a_plan_or_a_plan_error(data: Any) -> None:
    for what in (data, {"steps": data}, {"steps": [], "expect": data}):
        held_to_a_plan(json.dumps(what))


JUNK = (
    "steps:;- at_s: 1;  - {at_s: 1, action: kill,;target: node:1};    action: kill;"
    "    target: nodes:1,2;expect:;&a b;*a;!!int x;? k;: v;|;>-;---;%YAML 1.1;[;};<<: {a: 1};"
    "\t;';\";# c;- - -;  : :;1: 2"
)
lines = st.lists(st.sampled_from(JUNK.split(";")) | st.text()).map("\n".join)


@given(lines | st.binary() | st.text())
def test_junk_gives_a_plan_or_a_plan_error(text: str | bytes) -> None:
    held_to_a_plan(text)


def held_to_a_plan(text: str | bytes) -> None:
    try:
        plan = parse(text)
    except PlanError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert parse(plan.to_json()) == plan
        assert parse(to_yaml(plan)) == plan
