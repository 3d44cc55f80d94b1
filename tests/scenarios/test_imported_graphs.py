"""Traces from elsewhere as recordings: WfCommons, Alibaba 2018, Ray's timeline."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raytwin as ray
from raytwin.runtime.session.recording import Recording, load
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.workloads import (
    imported_alibaba,
    imported_ray_timeline,
    imported_wfcommons,
)
from raytwin.scenarios.workloads.imported_graph import Imported, TraceError
from raytwin.scenarios.workloads.recorded_program import cluster_of, play, work_of

LIMIT_S = 120.0
READERS: dict[str, Callable[[Path], Imported]] = {
    "wfcommons": imported_wfcommons.read,
    "alibaba": imported_alibaba.read,
    "ray-timeline": imported_ray_timeline.read,
}


def makespan_s(found: Recording, nodes: int | None = None) -> float:
    """Return the virtual seconds that a recording takes."""
    ray.init(backend="sim", cost="declared", nodes=cluster_of(found, nodes, None))
    try:
        return play(found).makespan_s
    finally:
        ray.shutdown()


def workflow(**tasks: tuple[float, list[str], list[str], dict[str, int]]) -> dict[str, Any]:
    """Return an instance of WfFormat 1.5.

    Each task has a runtime, parents, files that it reads, and the sizes of those that it writes.
    """
    children: dict[str, list[str]] = {name: [] for name in tasks}
    for name, (_, parents, *_) in tasks.items():
        for parent in parents:
            children[parent].append(name)
    specified = [
        {
            "name": name.rstrip("0123456789"), "id": name, "parents": parents,
            "children": children[name], "inputFiles": reads, "outputFiles": list(writes),
        }
        for name, (_, parents, reads, writes) in tasks.items()
    ]  # fmt: skip
    files = [
        {"id": file, "sizeInBytes": size}
        for *_, writes in tasks.values()
        for file, size in writes.items()
    ]
    ran = [{"id": name, "runtimeInSeconds": took} for name, (took, *_) in tasks.items()]
    machine = {"nodeName": "worker", "cpu": {"coreCount": 2}}
    return {
        "name": "small", "schemaVersion": "1.5",
        "workflow": {
            "specification": {"tasks": specified, "files": files},
            "execution": {
                "makespanInSeconds": 9.0, "executedAt": "2020", "tasks": ran,
                "machines": [machine, machine],
            },
        },
    }  # fmt: skip


# A split, two tasks of which each reads one part of it, a join, and one that waits for it alone.
SMALL = workflow(
    merge=(1.0, ["map1", "map2"], ["c", "d"], {"e": 10}),
    split=(1.0, [], ["outside"], {"a": 3_000_000, "b": 2_000_000}),
    map1=(2.0, ["split"], ["a"], {"c": 1_000}),
    map2=(3.0, ["split"], ["b"], {"d": 1_000}),
    notify=(0.5, ["merge"], [], {}),
)
ALIBABA = """\
M1,3,j_1,1,Terminated,100,110,100,30
R2_1,2,j_1,1,Terminated,110,115,50,0.2
J3_1_2,1,j_1,1,Terminated,115,120,200,0.2
task_xyz,1,j_2,1,Terminated,130,137,100,0.2
M1,1,j_3,1,Failed,130,131,100,0.2
R3_2,1,j_4,1,Terminated,131,135,,
"""
ACTOR, NONE = "ab" * 12, "ff" * 12
TIMELINE = [
    {"cat": f"task::{name}", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "ph": "X",
     "args": {"task_id": f"{number:016x}{actor}01000000"}}
    for number, (name, pid, tid, ts, dur, actor) in enumerate([
        ("A.add", "10.0.0.1", "w3", 5e6, 1e6, ACTOR),
        ("A.__init__", "10.0.0.1", "w3", 2e6, 1e6, ACTOR),
        ("f", "10.0.0.1", "w1", 2e6, 3e6, NONE), ("f", "10.0.0.1", "w2", 2.5e6, 2e6, NONE),
        ("f", "10.0.0.2", "w1", 5e6, 1e6, NONE), ("A.add", "10.0.0.1", "w3", 6e6, 1e6, ACTOR),
    ])
] + [
    {"cat": "task:execute", "name": "task:execute", "pid": "10.0.0.1", "tid": "w1", "ts": 3e6,
     "dur": 1.5e6, "ph": "X", "args": {}},
    {"name": "process_name", "ph": "M", "pid": "10.0.0.1", "args": {"name": "node"}},
]  # fmt: skip


def read(form: str, text: str, folder: Path) -> Imported:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return READERS[form](path)


def test_a_workflow_becomes_tasks_with_a_value_for_each_file(tmp_path: Path) -> None:
    imported = read("wfcommons", json.dumps(SMALL), tmp_path)
    found = imported.recording
    by_name = {body.name: body for body in found.bodies}
    split, merge, notify = by_name["split"], by_name["merge"], by_name["notify"]
    first, second = (body for body in found.bodies if body.name == "map")
    assert split.values == [3_000_000, 2_000_000, 0] and merge.values == [10, 0]
    assert (first.inputs, second.inputs) == ([f"{split.id}0000"], [f"{split.id}0001"])
    assert merge.inputs == [f"{first.id}0000", f"{second.id}0000"]
    assert notify.inputs == [f"{merge.id}0001"], "it waits for the end alone"
    assert found.driver.waits == [[f"{notify.id}0000"]]
    assert found.nodes == [{"CPU": 2.0}] * 2 and found.makespan_s == 9
    assert "1 inputs are files that no task writes" in imported.lacks[1]
    assert 1 + 3 + 1 + 0.5 <= makespan_s(found) < 5.7
    assert 1 + 2 + 3 + 1 + 0.5 <= makespan_s(cut(found)) < 7.7, "on one CPU"


def cut(found: Recording) -> Recording:
    """Return a recording on one node with one CPU."""
    found.nodes = [{"CPU": 1.0}]
    return found


def test_jobs_of_a_cluster_s_trace_arrive_when_they_did(tmp_path: Path) -> None:
    imported = read("alibaba", ALIBABA, tmp_path)
    found = imported.recording
    names = [body.name for body in found.bodies]
    assert names.count("M1") == 3 and names.count("R2_1") == 2 and names.count("end of M1") == 1
    assert "independent" in names
    (joint,) = [body for body in found.bodies if body.name == "J3_1_2"]
    ends = {body.id: body.name for body in found.bodies}
    assert sorted(ends[each[:32]] for each in joint.inputs) == ["end of M1", "end of R2_1"]
    assert joint.demand == {"CPU": 2.0, "plan_mem": 0.2}
    assert [waited for _, waited in found.driver.own] == [0, 30, 1, 0]
    assert imported.lacks[2].startswith("1 tasks have not ended")
    assert imported.lacks[3].startswith("1 times a task waits for one that is left out")
    # The second job begins after 30 s and takes 7.
    assert 37 <= makespan_s(found) < 37.2
    only = imported_alibaba.read(tmp_path / "trace", jobs=1).recording
    assert len(only.bodies) == 3 + 1 + 2 + 1 + 1
    assert 20 <= makespan_s(only) < 20.2
    # Of three tasks with 30 of 100 of a machine's memory one more would have to wait.
    short = read("alibaba", ALIBABA.replace("M1,3", "M1,4"), tmp_path).recording
    short.bodies = [body for body in short.bodies if body.name == "M1"]
    assert sum(body.demand["plan_mem"] for body in short.bodies) == 120


def test_a_timeline_becomes_a_bag_of_tasks_and_the_calls_of_actors(tmp_path: Path) -> None:
    imported = read("ray-timeline", json.dumps(TIMELINE), tmp_path)
    found = imported.recording
    kinds = [(body.kind, body.name, body.own[0][1]) for body in found.bodies]
    assert kinds == [
        ("actor", "A.__init__", 1.0), ("task", "f", 1.5), ("task", "f", 2.0),
        ("call", "A.add", 1.0), ("task", "f", 1.0), ("call", "A.add", 1.0),
    ]  # fmt: skip
    assert found.nodes == [{"CPU": 2.0}, {"CPU": 1.0}] and found.makespan_s == 5
    assert any("no references" in lack for lack in imported.lacks)
    assert any("no sizes" in lack for lack in imported.lacks)
    assert 3 <= makespan_s(found) < 3.2, "a construction and two calls"


def changed(path: str, value: Any) -> str:
    """Return the small workflow with another value somewhere, or without one: None."""
    whole = json.loads(json.dumps(SMALL))
    *keys, last = path.split(".")
    at: Any = whole
    for key in keys:
        at = at[int(key) if key.isdigit() else key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return json.dumps(whole)


TASK, RAN = "workflow.specification.tasks.1", "workflow.execution.tasks.0"


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("wfcommons", "", "is no workflow instance of WfCommons: "),
        ("wfcommons", changed("schemaVersion", "1.4"), "give an instance of 1.5 or 1.6"),
        ("wfcommons", changed("workflow.execution", None), "nothing says how long its tasks take"),
        ("wfcommons", changed(f"{TASK}.parents", ["merge"]), "waits for itself, by its parents"),
        ("wfcommons", changed(f"{TASK}.parents", ["x"]), "a parent that is not there: 'x'"),
        ("wfcommons", changed(f"{RAN}.id", "x"), "'merge' has no runtime in workflow.execution"),
        ("wfcommons", changed(f"{RAN}.runtimeInSeconds", -1), "Expected `float` >= 0.0"),
        ("wfcommons", changed(f"{RAN}.runtimeInSeconds", "1"), "Expected `float`, got `str`"),
        ("wfcommons", changed("workflow.execution.makespanInSeconds", -9), "`float` >= 0.0"),
        ("wfcommons", changed("workflow.specification.tasks", []), "has no task"),
        ("alibaba", "", "has no task, of those that have ended"),
        ("alibaba", "M1,2\n", "line 1: it has 2 columns, and not 9"),
        ("alibaba", ALIBABA + "M1,x,j,1,Terminated,1,2,100,1\n", "line 7: instance_num 'x' is no"),
        ("alibaba", "M1_1,1,j,1,Terminated,1,2,100,1\n", "job j: task 'M1_1' waits for itself"),
        ("ray-timeline", "{}", "is nothing that ray.timeline() writes: Expected `array`"),
        ("ray-timeline", "[]", "has no task: ray.timeline() writes"),
        ("ray-timeline", json.dumps(TIMELINE).replace("3000000.0", "-1"), "is no duration"),
    ],
)  # fmt: skip
def test_what_is_no_such_trace_is_refused_in_a_line(
    tmp_path: Path, form: str, text: str, said: str
) -> None:
    with pytest.raises(TraceError) as refused:
        read(form, text, tmp_path)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("form", READERS)
def test_any_file_is_imported_or_refused(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    texts = {
        "wfcommons": json.dumps(SMALL),
        "alibaba": ALIBABA,
        "ray-timeline": json.dumps(TIMELINE),
    }
    whole = texts[form].encode()
    at = data.draw(st.integers(0, len(whole)))
    other = data.draw(st.binary(max_size=3) | st.sampled_from([b"", b"-", b"0", b'"', b"1e400"]))
    path = tmp_path_factory.getbasetemp() / "drawn"
    path.write_bytes(whole[:at] + other + whole[at + 1 :])
    try:
        imported = READERS[form](path)
    except TraceError as refused:
        assert "\n" not in str(refused)
        return
    work_of(imported.recording)
    path.write_bytes(imported.recording.to_json())
    assert load(path) == imported.recording


def run(args: list[str]) -> str:
    """Run the command line in a process of its own: a simulation makes its clocks virtual."""
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", *args], capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def montage_like(seed: int, width: int) -> dict[str, Any]:
    """Return a workflow of the shape of Montage: project, fit neighbours, model, correct, add."""
    rng = random.Random(seed)
    tasks: dict[str, tuple[float, list[str], list[str], dict[str, int]]] = {}
    for n in range(width):
        tasks[f"project{n}"] = (rng.uniform(8, 12), [], [], {f"p{n}": 40_000, f"area{n}": 40_000})
        tasks[f"correct{n}"] = (
            rng.uniform(0.5, 1),
            ["model"],
            [f"p{n}", "table"],
            {f"c{n}": 40_000},
        )
    for n in range(width - 1):
        reads = [f"p{n}", f"p{n + 1}"]
        tasks[f"fit{n}"] = (
            rng.uniform(2, 3),
            [f"project{n}", f"project{n + 1}"],
            reads,
            {f"d{n}": 300},
        )
    fits = [f"d{n}" for n in range(width - 1)]
    tasks["model"] = (20.0, [f"fit{n}" for n in range(width - 1)], fits, {"table": 2_000})
    corrects, files = [f"correct{n}" for n in range(width)], [f"c{n}" for n in range(width)]
    tasks["add"] = (30.0, corrects, files, {"mosaic": 1_000_000})
    return workflow(**tasks)


def test_a_workflow_runs_on_a_thousand_nodes_and_scaled_in_time_on_real_processes(
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("montage.json").write_text(json.dumps(montage_like(seed, 12)))
    with pytest.raises(SystemExit) as left:
        app(["import", "wfcommons", "montage.json", "-o", "graph.json"])
    said = capsys.readouterr().err
    assert left.value.code == 0 and "37 tasks and calls, makespan 9 s, nodes 2: graph.json" in said
    on = {
        "sim": [
            "--backend",
            "sim",
            "--nodes",
            "1000",
            "--time-scale",
            "0.02",
            "--usage",
            "used.json",
            "graph.json",
        ],
        "local": ["--nodes", "2", "--cpus-per-node", "2", "--time-scale", "0.005", "graph.json"],
    }
    _, real = (run(["exec", *args]) for args in on.values())
    (used,) = json.loads(Path("used.json").read_text())
    assert (used["nodes"], used["tasks"]) == (1000, 37)
    # The longest path has a project, a fit, the model, a correction and the sum.
    shortest_s, longest_s = 8 + 2 + 20 + 0.5 + 30, 12 + 3 + 20 + 1 + 30
    assert 0.02 * shortest_s <= used["makespan_s"] <= 0.02 * longest_s + 0.5
    assert real.startswith("played 37 tasks and calls in ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pegasus", "x"], "no format 'pegasus': possible: wfcommons, alibaba, ray-timeline"),
        (["wfcommon", "x"], "did you mean 'wfcommons'?"),
        (["wfcommons", "x"], "cannot read x: No such file or directory"),
        (["alibaba", "empty"], "empty has no task, of those that have ended"),
        (
            ["wfcommons", "--jobs", "2", "empty"],
            "--jobs is of alibaba: a file of wfcommons has one",
        ),
        (["alibaba", "-o", "no/such", "empty"], "cannot write no/such: No such file or directory"),
    ],
)
def test_what_cannot_be_imported_gets_one_line(
    tmp_path: Path,
    args: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("")
    with pytest.raises(SystemExit) as left:
        app(["import", *args])
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert said in err and err.count("\n") == 1
    assert not Path("recording.json").exists()
