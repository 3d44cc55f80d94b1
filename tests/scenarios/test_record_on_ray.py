"""`raytwin record --backend ray`: what a script did on Ray itself, as a graph that runs on sim."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from raytwin.runtime.session import recording
from raytwin.runtime.session.recording import Body, Recording
from raytwin.scenarios.workloads.recordings.imported_graph import TraceError
from raytwin.scenarios.workloads.recordings.ray_graph import (
    Program,
    Put,
    Submission,
    TaskEvent,
    graph,
)
from raytwin.scenarios.workloads.recordings.recorded_program import work_of
from tests.requirements import require
from tests.scenarios import test_record

DRIVER = "f" * 40 + "01000000"
ACTOR = "ab" * 12 + "01000000"
CREATION = "f" * 16 + ACTOR


# -- the graph -----------------------------------------------------------------------


def task(number: int) -> str:
    """Return Ray's ID of a task."""
    return f"{number:016x}" + "f" * 24 + "01000000"


def value(of: str, number: int = 1) -> str:
    """Return Ray's ID of one of a task's values, from 1 on."""
    return of + number.to_bytes(4, "little").hex()


def event(
    own: str, start_s: float, end_s: float, name: str = "f", parent: str = DRIVER, **more: object
) -> TaskEvent:
    fields: dict[str, object] = {
        "kind": "task", "actor": "", "demand": {"CPU": 1.0}, "node": 0, "submitted_s": start_s,
    }  # fmt: skip
    return TaskEvent(own, parent, name, start_s=start_s, end_s=end_s, **{**fields, **more})  # type: ignore[arg-type]


def driver(*submissions: Submission, **more: object) -> Program:
    own = [(0.1, 0.0), (0.0, 0.0)]
    waits = [[oid for each in submissions for oid in each.values]]
    program = Program(100.0, 110.0, own, waits, list(submissions))
    for name, each in more.items():
        setattr(program, name, each)
    return program


def test_references_sizes_and_times_of_what_the_driver_submits() -> None:
    put = "00" + task(0)[2:] + "01e1f505"
    program = driver(
        Submission(task(1), 0, [put], 7, [value(task(1)), value(task(1), 2)]),
        Submission(task(2), 0, [value(task(1), 2)], 0, [value(task(2))]),
        puts=[Put(put, 0)],
        sizes={put: 900, value(task(1)): 10, value(task(1), 2): 20, value(task(2)): 30},
    )
    found = graph(program, [event(task(2), 104, 105), event(task(1), 101, 103)], [{"CPU": 1}], "s")
    first, second = found.recording.bodies
    assert (first.start_s, first.own, first.args_bytes) == (1.0, [(0.0, 2.0)], 7)
    assert (first.inputs, first.values) == ([found.recording.puts[0].id], [10, 20])
    assert (second.inputs, second.result_bytes) == ([f"{first.id}0001"], 30)
    assert found.recording.puts[0].nbytes == 900
    assert len(found.lacks) == 2
    work_of(found.recording)


def test_a_task_has_waited_for_the_tasks_of_its_own_that_ended_before_it_went_on() -> None:
    program = driver(Submission(task(1), 0, [], 0, [value(task(1))]))
    nested = [
        event(task(2), 102, 104, "a", task(1), submitted_s=101.0),
        event(task(3), 104, 105, "b", task(1), submitted_s=104.5),
        event(task(4), 105, 112, "c", task(1), submitted_s=104.5),
    ]
    found = graph(program, [event(task(1), 100, 108), *nested], [{"CPU": 2}], "s")
    parent, a, b, c = found.recording.bodies
    assert parent.own == [(0.0, 1.0), (0.0, 0.5), (0.0, 3.0)]
    assert parent.waits == [[f"{a.id}0000"], [f"{b.id}0000"]]
    assert [(each.parent, each.part) for each in (a, b, c)] == [
        (parent.id, 0), (parent.id, 1), (parent.id, 1)
    ]  # fmt: skip
    assert any("3 tasks were submitted by tasks" in lack for lack in found.lacks)
    work_of(found.recording)


def test_what_is_missing_is_said() -> None:
    program = driver(
        Submission(task(1), 0, [], 0, [value(task(1))]),
        Submission(task(2), 0, [value(task(1))], 0, [value(task(2))]),
    )
    found = graph(program, [event(task(2), 101, 102)], [{"CPU": 1}], "s")
    (body,) = found.recording.bodies
    assert body.inputs == []
    assert any(lack.startswith("1 tasks are left out") for lack in found.lacks)
    assert "1 objects have no known size: 0 bytes." in found.lacks
    work_of(found.recording)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (event(task(1), 1, 2, demand={"CPU_group_0_ab": 1.0}), "in a placement group"),
        (event(task(1), 1, 2, kind="call", actor=ACTOR), "of an actor that a task has made"),
    ],
)
def test_what_cannot_be_a_graph_is_refused(of: TaskEvent, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        graph(driver(Submission(task(1), 0, [], 0, [])), [of], [{"CPU": 1}], "s")


# -- on Ray --------------------------------------------------------------------------

SCRIPT = """
import sys, time
import ray

@ray.remote
def make(nbytes):
    time.sleep(0.05)
    return bytes(nbytes)

@ray.remote(num_returns=2)
def split(data):
    return data[:100_000], len(data)

@ray.remote
def nested():
    time.sleep(0.1)
    ray.get([make.remote(1) for _ in range(2)])
    time.sleep(0.1)

@ray.remote
class Counter:
    def __init__(self):
        self.count = 0

    def add(self, data, times=1):
        self.count += times
        return self.count

ray.init(num_cpus=64)
given = ray.put(bytes(300_000))
counter = Counter.remote()
head, size = split.remote(make.remote(200_000))
counts = [counter.add.remote(given), counter.add.remote(head, times=2)]
del given, head
print(ray.get([*counts, size]), sys.argv[1:])
ray.get(nested.remote())
sys.exit(3)
"""


ENDS_S = 70.0
"""Ray's processes wait a minute for a GCS that does not answer."""
PRESSES = 3
"""A user presses Ctrl-C again when nothing ends: once, on a busy machine, the first press had no
effect."""
MARK = "RAYTWIN_TEST_MARK"
"""The environment variable by which the processes of one recording are found."""


def raytwin(folder: Path, *args: str, mark: str = "") -> subprocess.CompletedProcess[str]:
    require("ray", importlib.util.find_spec("ray") is not None, "ray is not installed")
    return test_record.raytwin(folder, *args, **{MARK: mark})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a script and a recording of it."""
    folder = tmp_path_factory.mktemp("on_ray")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = raytwin(
        folder,
        "record",
        "--backend",
        "ray",
        "--cpus-per-node",
        "2",
        "script.py",
        "x",
        mark=str(folder),
    )
    assert (done.returncode, done.stdout) == (3, "[1, 3, 200000] ['x']\n"), done.stderr
    first, *lacks = done.stderr.splitlines()
    assert first.startswith("raytwin: recorded 8 tasks and calls in ")
    assert any("2 tasks were submitted by tasks" in line for line in lacks)
    return folder


def named(found: Recording, name: str) -> list[Body]:
    return [body for body in found.bodies if body.name == name]


@pytest.mark.ray
def test_a_script_on_ray_is_recorded_with_references_sizes_and_times(folder: Path) -> None:
    found = recording.load(folder / "recording.json")
    (creation,), (split,), (nested,) = (named(found, n) for n in ("Counter", "split", "nested"))
    (made,) = [body for body in named(found, "make") if body.parent == found.driver.id]
    first, second = named(found, "Counter.add")
    (put,) = found.puts
    assert found.nodes == [{"CPU": 2.0}]
    assert first.actor == second.actor == creation.id[:24]
    assert split.inputs == [f"{made.id}0000"]
    assert {*first.inputs, *second.inputs} == {put.id, f"{split.id}0000"}
    assert 200_000 <= made.result_bytes < 201_000 and 300_000 <= put.nbytes < 301_000
    assert split.values[0] >= 100_000 > split.values[1] > 0
    assert second.args_bytes > first.args_bytes == 0
    assert sum(map(sum, made.own)) >= 0.05
    assert [body.parent for body in named(found, "make")].count(nested.id) == 2
    assert min(nested.own[0][1], nested.own[-1][1]) >= 0.1
    assert [len(ids) for ids in found.driver.waits] == [3, 1]


@pytest.mark.ray
def test_the_graph_runs_on_sim(folder: Path) -> None:
    done = test_record.raytwin(folder, "exec", "--backend", "sim", "--nodes", "2", "recording.json")
    assert done.returncode == 0, done.stderr
    assert "played 8 tasks and calls" in done.stdout


@pytest.mark.ray
def test_no_process_of_the_recorded_cluster_is_left(folder: Path) -> None:
    assert not list(_marked(str(folder)))


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes that have inherited a mark."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK) == mark:
                yield process


@pytest.mark.ray
def test_ctrl_c_ends_the_cluster_and_records_nothing(tmp_path: Path) -> None:
    script = "import time, ray\nray.init()\nprint('on', flush=True)\ntime.sleep(900)\n"
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    require("ray", importlib.util.find_spec("ray") is not None, "ray is not installed")
    command = [sys.executable, "-m", "raytwin", "record", "--backend", "ray", "script.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, MARK: str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        for _ in range(PRESSES):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                _, said = process.communicate(timeout=ENDS_S)
                break
        else:
            process.kill()
            pytest.fail(f"Ctrl-C has no effect, pressed {PRESSES} times")
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "raytwin: interrupted: nothing is recorded"
    assert not list(_marked(str(tmp_path)))
    assert not (tmp_path / "recording.json").exists()


@pytest.mark.ray
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "script.py has not used Ray: there is nothing to record"),
        ("import ray\nray.init(local_mode=True)", "with local_mode Ray has no workers"),
        (
            "import raytwin as ray\nray.init(gcs_replicas=2)",
            "gcs_replicas is not possible where a script is recorded on Ray",
        ),
        (
            "import raytwin as ray\nwith ray.init(cpus_per_node=1):\n    pass\nray.init()",
            "a recording is of one cluster, and script.py starts another",
        ),
    ],
)
def test_what_cannot_be_recorded_on_ray_gets_one_line(
    script: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    done = raytwin(tmp_path, "record", "--backend", "ray", "script.py")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "recording.json").exists()


def test_only_two_backends_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = test_record.raytwin(tmp_path, "record", "--backend", "sim", "script.py")
    assert done.returncode == 2
    assert "nothing is recorded on 'sim': there are local and ray" in done.stderr
