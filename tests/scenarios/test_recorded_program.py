"""A recording as a program: what it submits, where, and what it is refused for."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raytwin as ray
from raytwin.runtime.control.core.ids import array_id, put_id, root_task_id, task_id
from raytwin.runtime.session import recording as recordings
from raytwin.runtime.session.recording import Body, Driver, Put, Recording
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.workloads.recordings.recorded_program import cluster_of, play, work_of
from raytwin.simulator.machine.costs import load_profile

LIMIT_S = 60.0
ROOT = root_task_id("driver:0.0")


def task(number: int, parent: bytes = ROOT) -> str:
    return task_id(array_id(parent, number), 0).hex()


def body(id: str, own_s: float = 1.0, **fields: Any) -> Body:
    """Return a task of the driver that sleeps, on one CPU; `fields` are other than that."""
    usual: dict[str, Any] = {
        "name": "nap", "kind": "task", "parent": ROOT.hex(), "demand": {"CPU": 1.0}, "inputs": [],
        "args_bytes": 0, "result_bytes": 10, "start_s": 0.0, "end_s": own_s, "node": 0,
        "own": [(0.0, own_s)],
    }  # fmt: skip
    return Body(id=id, **{**usual, **fields})


def value(task: str) -> str:
    """Return the ID of a task's value."""
    return f"{task}0000"


def graph(bodies: list[Body], waits: list[list[str]] | None = None, **fields: Any) -> Recording:
    """Return a recording whose driver waits for its tasks, or as it is told to."""
    if waits is None:
        waits = [[value(each.id) for each in bodies if each.parent == ROOT.hex()]]
    own = [(0.0, 0.0)] * (len(waits) + 1)
    usual: dict[str, Any] = {
        "format": "raytwin-recording", "version": 1, "script": "test", "backend": "local",
        "nodes": [{"CPU": 2.0, "node:0": 1.0, "memory": 1e9}], "makespan_s": 1.0,
        "driver": Driver(ROOT.hex(), own, waits), "bodies": bodies,
    }  # fmt: skip
    return Recording(**{**usual, **fields})


def simulated(recording: Recording, nodes: int | None = None, **scales: float) -> float:
    """Return the virtual seconds that a recording takes on its own cluster, or on more nodes."""
    ray.init(backend="sim", cost="declared", nodes=cluster_of(recording, nodes, None))
    try:
        return play(recording, **scales).makespan_s
    finally:
        ray.shutdown()


def test_tasks_share_the_cpus_of_as_many_nodes_as_there_are() -> None:
    found = graph([body(task(number)) for number in range(1, 9)])
    assert 4 <= simulated(found) < 4.2
    assert 1 <= simulated(found, nodes=4) < 1.5


def test_a_task_waits_for_its_inputs_and_the_driver_between_its_parts() -> None:
    first, second, third = (task(number) for number in range(1, 4))
    chain = [body(first), body(second, inputs=[value(first)]), body(third, inputs=[value(second)])]
    assert 3 <= simulated(graph(chain)) < 3.2
    steps = [body(first), body(second, part=1), body(third, part=1)]
    waits = [[value(first)], [value(second), value(third)]]
    assert 2 <= simulated(graph(steps, waits)) < 2.2


def test_own_times_alone_are_scaled() -> None:
    large = body(task(1), result_bytes=3_125_000_000, demand={"node:0": 0.001})
    reader = body(task(2), inputs=[value(large.id)], demand={"node:1": 0.001})
    nodes = [{"CPU": 1.0, "node:0": 1.0}, {"CPU": 1.0, "node:1": 1.0}]
    found = graph([large, reader], nodes=nodes)
    own_s, scaled_s = simulated(found), simulated(found, time_scale=0.5)
    assert own_s - scaled_s == pytest.approx(1.0, abs=0.05), "two naps of a second"
    # The transfer of 3.1 GB at 3.1 GB/s is left as it was.
    assert simulated(found, time_scale=1e-9) > 1
    assert simulated(found, time_scale=1e-9, size_scale=0.1) < 0.2
    computes = graph([body(task(1), own=[(1.0, 0.0)])])
    assert 3 <= simulated(computes, cpu_scale=3) < 3.2


def test_nested_tasks_actors_and_puts_run_where_they_ran() -> None:
    parent, actor, call, user = (task(number) for number in range(1, 5))
    inner = task(1, bytes.fromhex(parent))
    put = Put(value(f"{put_id(ROOT, 1).hex()}00000000"), ROOT.hex(), 5_000)
    held = Put(value(f"{put_id(bytes.fromhex(actor), 1).hex()}00000000"), actor, 5_000)
    inside = task(1, bytes.fromhex(call))
    bodies = [
        body(parent, own=[(0, 0.5), (0, 0.5)], waits=[[value(inner)]]),
        body(inner, parent=parent, inputs=[put.id]),
        body(actor, kind="actor", demand={}),
        body(call, kind="call", actor=actor[:24], demand={}, own=[(0, 0.1)] * 2,
             waits=[[value(inside)]]),
        body(inside, parent=call, inputs=[held.id], own_s=0.2),
        # One that has the actor from its parent.
        body(user, own=[(0, 0.1)] * 2, waits=[[value(task(1, bytes.fromhex(user)))]]),
        body(task(1, bytes.fromhex(user)), parent=user, kind="call", actor=actor[:24], demand={}),
    ]  # fmt: skip
    found = graph(bodies, [[value(parent), value(call), value(user)]], puts=[put, held])
    # The construction, the two parts of the first call with a task between, and the second call.
    assert 1 + 0.1 + 0.2 + 0.1 + 1 + 0.1 <= simulated(found, nodes=4) < 2.7


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ([body(task(1), inputs=[value(task(2))])], "has an input that nobody makes"),
        ([body(task(1), parent=task(2))], "has a parent that is not recorded"),
        ([body(task(1), kind="call", actor=task(2)[:24])], "is of an actor that nobody makes"),
        ([body(task(1), part=3)], "was made in part 3"),
        ([body(task(1), own=[(0, 1), (0, 1)])], "has 2 parts and 0 waits"),
        ([body(task(1), parent=task(2)), body(task(2), parent=task(1))], "their own ancestors"),
        (
            [body(task(1)), body(task(2), parent=task(1)), body(task(3), inputs=[value(task(2))])],
            "used where nobody has given a reference",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_line(bodies: list[Body], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        work_of(graph(bodies, [[]]))
    assert "\n" not in str(refused.value)


def test_a_chain_of_nested_tasks_has_a_limit() -> None:
    chain = [ROOT.hex(), *(task(number) for number in range(1, 200))]
    bodies = [body(each, parent=parent) for parent, each in pairwise(chain)]
    with pytest.raises(ValueError, match="more than 100 deep"):
        work_of(graph(bodies, [[]]))
    work_of(graph(bodies[:90], [[]]))


def test_a_body_that_no_node_can_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nap needs CPU 4, and no node has it: .* CPU 2"):
        cluster_of(graph([body(task(1), demand={"CPU": 4.0})]), None, None)
    assert cluster_of(graph([body(task(1), demand={"CPU": 4.0})]), 2, 4) == [{"CPU": 4.0}] * 2


ids = st.sampled_from([ROOT.hex(), *(task(number) for number in range(1, 5)), "", "x"])
drawn = st.builds(
    body,
    ids,
    own=st.lists(st.just((0.0, 0.0)), max_size=2),
    kind=st.sampled_from(["task", "actor", "call"]),
    parent=st.none() | ids,
    inputs=st.lists(ids.map(value), max_size=2),
    actor=st.none() | ids.map(lambda id: id[:24]),
    part=st.integers(0, 2),
    waits=st.lists(st.lists(ids.map(value), max_size=2), max_size=1),
)


@settings(max_examples=60)
@given(st.lists(drawn, max_size=5), st.lists(st.lists(ids.map(value), max_size=3), max_size=2))
def test_any_graph_is_refused_or_has_work(bodies: list[Body], waits: list[list[str]]) -> None:
    try:
        work = work_of(graph(bodies, waits))
    except ValueError:
        return
    assert len(work.own) == len(waits) + 1


WHOLE = graph([body(task(1))]).to_json()


@settings(max_examples=60)
@given(at=st.integers(0, len(WHOLE)), other=st.binary(max_size=3))
def test_any_file_is_a_recording_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, other: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn.json"
    path.write_bytes(WHOLE[:at] + other + WHOLE[at + 1 :])
    try:
        found = recordings.load(path)
        cluster_of(found, None, None)
        work_of(found)
    except ValueError as refused:
        assert "\n" not in str(refused)


def raytwin(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *args], cwd=folder,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_exec_takes_a_recording_where_a_script_goes(tmp_path: Path) -> None:
    found = graph([body(task(number), own_s=5.0) for number in range(1, 9)])
    (tmp_path / "graph.json").write_bytes(found.to_json())
    done = raytwin(tmp_path, "exec", "--time-scale", "0.001", "graph.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("played 8 tasks and calls in ")
    assert done.stdout.endswith("recorded: 1 s x 0.001 = 0.001 s\n")
    done = raytwin(
        tmp_path, "exec", "--backend", "sim", "--nodes", "4", "--usage", "used.json", "graph.json"
    )
    assert done.returncode == 0, done.stderr
    (used,) = json.loads((tmp_path / "used.json").read_text())
    assert (used["nodes"], round(used["cpus"]), used["tasks"]) == (4, 8, 8)
    assert 5 <= used["makespan_s"] < 5.5


WORKERS_ASKED = """
import sys

import raytwin as ray
from raytwin.scenarios.cli import main

def loaded():
    return "numpy" in sys.modules

def init(**options):
    begin(**options)
    print(ray.get(ray.remote(loaded).remote()))

begin, ray.init = ray.init, init
assert not loaded()
main.main()
"""


def test_workers_that_play_a_recording_are_forked_with_numpy(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(graph([body(task(1), own_s=0.0)]).to_json())
    done = subprocess.run(
        [sys.executable, "-c", WORKERS_ASKED, "exec", "graph.json"], cwd=tmp_path,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True\nplayed 1 tasks and calls in ")


def test_nodes_of_one_host_share_its_cores(tmp_path: Path) -> None:
    cores = load_profile("paper").cores
    tasks = 2 * cores
    found = graph([body(task(number), own=[(1.0, 0.0)]) for number in range(1, tasks + 1)])
    (tmp_path / "graph.json").write_bytes(found.to_json())
    for_each = ["--nodes", str(tasks), "--cpus-per-node", "1", "--usage", "used.json"]
    makespans = []
    for per_host in 1, tasks:
        given = [*for_each, "--nodes-per-host", str(per_host), "graph.json"]
        done = raytwin(tmp_path, "exec", "--backend", "sim", *given)
        assert done.returncode == 0, done.stderr
        (used,) = json.loads((tmp_path / "used.json").read_text())
        makespans.append(used["makespan_s"])
    assert 1 <= makespans[0] < 1.5
    assert 2 <= makespans[1] < 2.5


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["none.json"], "cannot read the recording none.json: No such file"),
        (["empty.json"], "empty.json is not a recording: "),
        (["empty.json", "--backend", "sim"], "options of exec go before it"),
        (["--time-scale", "2", "script.py"], "--time-scale is for a recording"),
        (["--time-scale", "0", "empty.json"], "--time-scale 0.0 is no factor"),
        (["--size-scale", "2", "script.py"], "--size-scale is for a recording"),
        (["--size-scale", "inf", "empty.json"], "--size-scale inf is no factor"),
        (["--address", "auto", "--faults", "spot", "empty.json"], "leave --address out"),
        (["--cpus-per-node", "0", "graph.json"], "nap needs CPU 1, and no node has it"),
    ],
)
def test_what_exec_cannot_play_gets_one_line(
    tmp_path: Path,
    args: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "graph.json").write_bytes(graph([body(task(1))]).to_json())
    with pytest.raises(SystemExit) as left:
        app(["exec", *args])
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, ""), err
    assert said in err and err.count("\n") == 1
