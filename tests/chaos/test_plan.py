"""Plans are data: valid ones, invalid ones, and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.chaos.faults.plan import Plan, PlanError, Step, from_data, load, parse
from raytwin.chaos.faults.targets import ACTIONS, TARGETS

KILL = {"at_s": 1, "action": "kill", "target": "node:1"}


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({**KILL, "action": "kil"}, "did you mean 'kill'"),
        ({**KILL, "target": "nod:1"}, "did you mean 'node'"),
        ({**KILL, "target": "node:x"}, "it is written node:3"),
        ({**KILL, "target": "worker:1"}, "it is written worker:3.1"),
        ({**KILL, "target": "link:1>1"}, "it is written link:1>2"),
        ({**KILL, "target": "link:0>1"}, "applies to node and worker"),
        ({**KILL, "target": "worker:0.1", "action": "restart"}, "it applies to node"),
        ({**KILL, "at_s": -1}, "at least 0"),
        ({**KILL, "at_s": float("nan")}, "at least 0"),
        ({**KILL, "at_s": True}, "at least 0"),
        ({**KILL, "after": "node_died:1"}, "either at_s or after"),
        ({"action": "kill", "target": "node:1"}, "either at_s or after"),
        ({"after": "noon", "action": "kill", "target": "node:1"}, "node_added:1"),
        ({"after": "step:x", "action": "kill", "target": "node:1"}, "no event 'step:x'"),
        ({**KILL, "delay_s": 1}, "with after"),
        ({**KILL, "parameters": {"hard": True}}, "it takes none"),
        ({**KILL, "tarqet": "node:1"}, "did you mean 'target'"),
        ({**KILL, "target": 3}, "it needs target"),
        ({"after": 3, "action": "kill", "target": "node:1"}, "after is a text"),
        ({**KILL, "parameters": []}, "parameters is an object"),
        ({**KILL, "action": "latency", "target": "link:0>1"}, "give latency_ms"),
        (
            {**KILL, "action": "add_node", "target": "cluster", "parameters": {"resources": 3}},
            'such as {"CPU": 2}',
        ),
        ("kill", "a step is an object"),
    ],
)
def test_a_bad_step_gets_one_line_with_the_valid_values(step: Any, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        from_data({"steps": [KILL, step]})
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": 3}', '{"steps": [], "x": 1}', "}{"])
def test_other_data_than_a_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        parse(text)


def test_a_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read plan"):
        load(tmp_path / "none.json")
    (tmp_path / "plan.json").write_text('{"steps": [{"at_s": 1}]}')
    with pytest.raises(PlanError, match=r"plan\.json: step 1: it needs action"):
        load(tmp_path / "plan.json")


def test_a_backend_that_cannot() -> None:
    plan = Plan([Step("latency", "link:0>1", 1, parameters={"latency_ms": 5})])
    plan.check_backend("sim")
    with pytest.raises(PlanError, match="does not work on local: it does on sim"):
        plan.check_backend("local")


seconds = st.floats(0, 1e6, allow_nan=False)
numbers = st.integers(0, 99)
targets = st.one_of(
    st.builds("node:{}".format, numbers),
    st.builds("worker:{}.{}".format, numbers, numbers),
    st.tuples(numbers, numbers).filter(lambda p: p[0] != p[1]).map(lambda p: f"link:{p[0]}>{p[1]}"),
    st.builds("actor:{}".format, numbers),
    st.just("cluster"),
)
parameters = {
    "latency": st.fixed_dictionaries({"latency_ms": seconds}),
    "add_node": st.fixed_dictionaries({"resources": st.dictionaries(st.text(min_size=1), seconds)}),
}


@st.composite
def steps(draw: Any) -> Step:
    target = draw(targets)
    kind = TARGETS[target.partition(":")[0]]
    action = draw(st.sampled_from([name for name in ACTIONS if hasattr(kind, name)]))
    given_parameters = draw(parameters.get(action, st.just({})))
    if draw(st.booleans()):
        return Step(action, target, draw(seconds), parameters=given_parameters)
    after = draw(st.sampled_from(["node_died:3", "node_added:0"]))
    return Step(action, target, None, after, draw(seconds), given_parameters)


@given(st.lists(steps(), max_size=8).map(Plan))
def test_a_plan_comes_back_from_its_file(plan: Plan) -> None:
    assert parse(plan.to_json()) == plan
    assert from_data(plan.to_data()) == plan


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
nearly_steps = st.dictionaries(
    st.sampled_from(["at_s", "after", "delay_s", "action", "target", "parameters"]),
    json_values
    | st.sampled_from(["kill", "node:1", "latency", "link:0>1", "node_died:1", "pause"]),
)


@given(st.lists(nearly_steps, max_size=3) | json_values)
def test_any_data_gives_a_plan_or_a_plan_error(data: Any) -> None:
    for what in (data, {"steps": data}):
        try:
            plan = parse(json.dumps(what))
        except PlanError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert parse(plan.to_json()) == plan
