"""Traces from elsewhere as recordings: WfCommons, Alibaba 2018, Ray's timeline."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raytwin as ray
from raytwin.runtime.control.core.ids import array_id, task_id
from raytwin.runtime.session.recording import Recording, load
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.workloads.recordings import (
    imported_alibaba,
    imported_ray_timeline,
    imported_wfcommons,
)
from raytwin.scenarios.workloads.recordings.imported_graph import Imported, TraceError
from raytwin.scenarios.workloads.recordings.recorded_program import cluster_of, play, work_of

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


GENERATED = Path(__file__).parent / "wfcommons"
"""Instances that WfCommons has written; the README there says how."""


def generated(name: str, folder: Path) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(gzip.decompress((GENERATED / f"{name}.json.gz").read_bytes()))
    return path


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        (
            "montage",
            {"mProject": 30, "mDiffFit": 66, "mConcatFit": 4, "mBgModel": 4, "mBackground": 30,
             "mImgtbl": 4, "mAdd": 4, "mViewer": 5},
        ),
        (
            "epigenomics",
            {"fastqSplit": 1, "filterContams": 35, "sol2sanger": 35, "fast2bfq": 35, "map": 35,
             "mapMerge": 2, "chr21": 1, "pileup": 1},
        ),
    ],
)  # fmt: skip
def test_what_wfcommons_has_written_is_imported_in_full(
    name: str, functions: dict[str, int], tmp_path: Path
) -> None:
    path = generated(name, tmp_path)
    imported = imported_wfcommons.read(path)
    found, whole = imported.recording, json.loads(path.read_bytes())["workflow"]
    assert Counter(body.name for body in found.bodies) == functions
    took_s = sum(task["runtimeInSeconds"] for task in whole["execution"]["tasks"])
    assert sum(body.own[0][1] for body in found.bodies) == pytest.approx(took_s)
    sizes = {file["id"]: file["sizeInBytes"] for file in whole["specification"]["files"]}
    specified = whole["specification"]["tasks"]
    written = {file for task in specified for file in task["outputFiles"]}
    assert sum(body.result_bytes for body in found.bodies) == sum(sizes[file] for file in written)
    assert sum(size > 0 for body in found.bodies for size in body.values) == len(written)
    outside = sum(file not in written for task in specified for file in task["inputFiles"])
    assert f"{outside} inputs are files that no task writes" in imported.lacks[1]
    assert found.nodes == [{"CPU": 1.0}] and "It names no machines" in imported.lacks[2]


def ran(found: Recording, nodes: int, backend: str, **scales: float) -> tuple[Counter[str], float]:
    """Run a recording; return how many tasks ran by name, of those that ran once, and seconds."""
    costs = {"cost": "declared"} if backend == "sim" else {}
    ray.init(backend=backend, nodes=cluster_of(found, nodes, None), **costs)
    try:
        makespan_s = play(found, **scales).makespan_s
        events = [event for event in ray.timeline() if event.get("cat") == "task"]
    finally:
        ray.shutdown()
    runs = Counter((event["name"], event["args"]["array"]) for event in events)
    return Counter(name for (name, _), times in runs.items() if times == 1), makespan_s


def path_s(found: Recording) -> float:
    """Return the longest sum of times along inputs: no cluster is faster."""
    end_s: dict[str, float] = {}
    for body in found.bodies:
        ready_s = max((end_s[each[:32]] for each in body.inputs), default=0.0)
        end_s[body.id] = ready_s + body.own[0][1]
    return max(end_s.values())


@pytest.mark.parametrize("name", ["montage", "epigenomics"])
def test_a_generated_workflow_runs_on_a_thousand_simulated_nodes_and_on_real_processes(
    name: str, tmp_path: Path
) -> None:
    found = imported_wfcommons.read(generated(name, tmp_path)).recording
    every = Counter(body.name for body in found.bodies)
    shortest_s = path_s(found)
    simulated, predicted_s = ran(found, 1000, "sim", time_scale=0.001, size_scale=0.001)
    assert simulated == every
    assert 0.001 * shortest_s <= predicted_s < 0.001 * shortest_s + 0.5
    real, measured_s = ran(found, 2, "local", time_scale=2e-5, size_scale=0.001)
    assert real == every
    all_s = sum(body.own[0][1] for body in found.bodies)
    assert measured_s >= 2e-5 * max(shortest_s, all_s / 2)


PLAY = """
import sys
from pathlib import Path

import raytwin as ray
from raytwin.runtime.session.recording import load
from raytwin.scenarios.workloads.recordings.recorded_program import cluster_of, play

found = load(Path(sys.argv[1]))
ray.init(nodes=cluster_of(found, 2, 2))
play(found, time_scale=1e-5, size_scale=0.01)
"""


def shape(found: Recording) -> list[tuple[str, int, list[tuple[int, str]]]]:
    """Return the name of each task, the bytes of its values, and which value of which it has.

    Tasks are counted in the order of their submission, of which their IDs tell.
    """
    root = bytes.fromhex(found.driver.id)
    numbers = {
        task_id(array_id(root, number), 0).hex(): number
        for number in range(1, len(found.bodies) + 1)
    }
    bodies = sorted(found.bodies, key=lambda body: numbers[body.id])
    return [
        (body.name, body.result_bytes, [(numbers[each[:32]], each[32:]) for each in body.inputs])
        for body in bodies
    ]


def test_what_ran_on_real_processes_is_recorded_as_the_same_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = imported_wfcommons.read(generated("montage", tmp_path)).recording
    Path("graph.json").write_bytes(found.to_json())
    Path("play.py").write_text(PLAY)
    run(["record", "-o", "again.json", "play.py", "graph.json"])
    before, after = shape(found), shape(load("again.json"))
    assert [(name, inputs) for name, _, inputs in after] == [
        (name, inputs) for name, _, inputs in before
    ]
    pickled_bytes = 500  # at most, of a task's values besides their contents
    for (_, contents, _), (_, serialized, _) in zip(before, after, strict=True):
        assert 0.01 * contents - 1 <= serialized <= 0.01 * contents + pickled_bytes


def test_a_workflow_is_imported_and_played_by_commands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    generated("montage", tmp_path)
    with pytest.raises(SystemExit) as left:
        app(["import", "wfcommons", "montage.json", "-o", "graph.json"])
    said = capsys.readouterr().err
    assert left.value.code == 0 and "147 tasks and calls, nodes 1: graph.json" in said
    scaled = ["--time-scale", "1e-5", "--size-scale", "0.001", "graph.json"]
    run(["exec", "--backend", "sim", "--nodes", "1000", "--usage", "used.json", *scaled])
    (used,) = json.loads(Path("used.json").read_text())
    assert (used["nodes"], used["tasks"]) == (1000, 147)
    real = run(["exec", "--nodes", "2", "--cpus-per-node", "2", *scaled])
    assert real.startswith("played 147 tasks and calls in ") and "recorded" not in real


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
