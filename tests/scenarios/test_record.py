"""`raytwin record`: what a script did on real processes, as a graph that predictions use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from raytwin.runtime.session import recording
from raytwin.runtime.session.recording import Body, Recording

LIMIT_S = 100.0

SCRIPT = """
import sys, time
import ray

@ray.remote
def leaf(i, given=None):
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    return bytes(200_000) if i == 1 else i

@ray.remote
def parent():
    time.sleep(0.05)
    ray.put(bytes(1000))
    values = ray.get([leaf.remote(0), leaf.remote(1)])
    time.sleep(0.1)
    return len(values)

@ray.remote
class Counter:
    def count(self):
        time.sleep(0.01)
        return 1

@ray.remote(num_returns="streaming")
def items():
    for item in range(3):
        time.sleep(0.02)
        yield item

ray.init()
counter = Counter.remote()
big = ray.put(bytes(300_000))
print(ray.get([parent.remote(), counter.count.remote()]))
ray.get(leaf.remote(2, big))
print(ray.get(leaf.map(range(2, 6))), [ray.get(item) for item in items.remote()])
sys.exit(3)
"""


def raytwin(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *args], cwd=folder, env={**os.environ, **env},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a script and a recording of it."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = raytwin(folder, "record", "--nodes", "1", "--cpus-per-node", "2", "script.py")
    assert done.returncode == 3, done.stderr
    assert done.stdout == "[2, 1]\n[2, 3, 4, 5] [0, 1, 2]\n"
    assert "raytwin: recorded 11 tasks and calls in" in done.stderr
    return folder


def named(found: Recording, name: str) -> list[Body]:
    return [body for body in found.bodies if body.name == name]


def test_a_recording_is_a_graph_of_what_ran(folder: Path) -> None:
    found = recording.load(folder / "recording.json")
    driver = found.driver.id
    (parent,), leaves = named(found, "parent"), named(found, "leaf")
    (creation,), (count,) = named(found, "Counter"), named(found, "Counter.count")
    assert [creation.kind, count.kind, parent.kind] == ["actor", "call", "task"]
    assert count.actor == creation.id[:24]
    assert [leaf.parent for leaf in leaves].count(parent.id) == 2
    assert {body.parent for body in found.bodies} == {driver, parent.id}
    assert len({body.id for body in found.bodies}) == 11
    small, big = sorted(found.puts, key=lambda put: put.nbytes)
    assert small.parent == parent.id and 1000 <= small.nbytes < 1100
    assert big.parent == driver and 300_000 <= big.nbytes < 301_000
    assert [leaf.inputs for leaf in leaves].count([big.id]) == 1
    assert [leaf.result_bytes >= 200_000 for leaf in leaves].count(True) == 1
    assert parent.demand == {"CPU": 1.0} and creation.demand == {}
    assert found.nodes[0]["CPU"] == 2
    assert all(0 <= body.start_s <= body.end_s <= found.makespan_s for body in found.bodies)


def test_a_recording_has_what_each_body_did_by_itself_between_its_waits(folder: Path) -> None:
    found = recording.load(folder / "recording.json")
    (parent,) = named(found, "parent")
    (before, waited_before), (after, waited_after) = parent.own
    assert before < waited_before and after < waited_after
    assert 0.05 <= waited_before < waited_after and waited_after >= 0.1
    for leaf in named(found, "leaf"):
        ((cpu_s, waited_s),) = leaf.own
        assert cpu_s >= 0.02 and waited_s < cpu_s
    # A part for the call, which makes the generator, one for each item, and one for its end.
    own = named(found, "items")[0].own
    assert len(own) == 5
    assert all(waited_s >= 0.02 for _, waited_s in own[1:4])


def test_a_recording_says_which_part_has_submitted_what_and_waited_for_what(folder: Path) -> None:
    found = recording.load(folder / "recording.json")
    (parent,), (count,) = named(found, "parent"), named(found, "Counter.count")
    leaves, (items,) = named(found, "leaf"), named(found, "items")
    children = [leaf for leaf in leaves if leaf.parent == parent.id]
    assert sorted(parent.waits[0]) == sorted(f"{leaf.id}0000" for leaf in children)
    assert [leaf.part for leaf in children] == [0, 0]
    first, second, *_ = found.driver.waits
    assert sorted(first) == sorted([f"{parent.id}0000", f"{count.id}0000"])
    ((reader),) = [leaf for leaf in leaves if leaf.inputs]
    assert (second, reader.part, items.part) == ([f"{reader.id}0000"], 1, 3)
    assert [put.part for put in found.puts] == [0, 0]
    # The four items, each first as a reference and then as a value, and the end of the stream.
    assert len(found.driver.waits) == 3 + 3 * 2 + 1


def test_a_recording_runs_by_itself_as_its_script_does(folder: Path) -> None:
    on = ["--backend", "sim", "--cpus-per-node", "2", "--nodes", "1"]
    found = []
    for program in ["recording.json"], ["--recording", "recording.json", "script.py"]:
        done = raytwin(folder, "exec", *on, "--usage", "used.json", *program)
        assert done.returncode in (0, 3), done.stderr
        (used,) = json.loads((folder / "used.json").read_text())
        found.append(used)
    assert found[0]["tasks"] == found[1]["tasks"] == 11
    assert found[0]["makespan_s"] == pytest.approx(found[1]["makespan_s"], rel=0.03)


def test_the_schema_is_published_and_recordings_follow_it(folder: Path) -> None:
    assert recording.FILE.read_text(encoding="utf-8") == recording.text(), (
        "python -m raytwin.runtime.session.recording writes it anew"
    )
    written: Any = json.loads((folder / "recording.json").read_text())
    jsonschema.Draft202012Validator(recording.schema()).validate(written)
    written["bodies"][0]["unknown"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(recording.schema()).validate(written)


def test_a_prediction_charges_what_was_recorded_and_is_the_same_in_each_run(folder: Path) -> None:
    command = ["exec", "--backend", "sim", "--cpus-per-node", "2", "--recording", "recording.json"]
    done = raytwin(folder, *command, "script.py")
    assert done.returncode == 3, done.stderr
    first, second, *_ = done.stderr.splitlines()
    found = recording.load(folder / "recording.json")
    own_s = {name: sum(map(sum, named(found, name)[0].own)) for name in ("parent", "items", "leaf")}
    # The parent and its leaves, side by side; one leaf; four leaves on two CPUs; the stream.
    at_best_s = own_s["parent"] + own_s["items"] + 4 * 0.02
    assert at_best_s <= float(first.split()[3]) <= 1.7 * at_best_s, (first, own_s)
    assert "11 their own time, 0 the mean of their function, 0 nothing" in second
    again = raytwin(folder, *command, "script.py", PYTHONHASHSEED="1")
    assert (again.stdout, again.stderr) == (done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["exec", "--backend", "sim", "--cost", "recorded"], "--cost recorded needs --recording"),
        (["exec", "--backend", "sim", "--recording", "none"], "cannot read the recording none: No"),
        (["exec", "--backend", "sim", "--recording", "empty.py"], "empty.py is not a recording:"),
        (["exec", "--recording", "none"], "--recording is for what is simulated"),
        (
            ["exec", "--backend", "sim", "--recording", "none", "--cost", "declared"],
            "--recording is for --cost recorded, not for --cost declared",
        ),
        (["record"], "empty.py has started no cluster: there is nothing to record"),
        (["record", "-o", "no/such/folder"], "no/such/folder: No such file or directory; give"),
    ],
)
def test_what_cannot_be_recorded_or_read_gets_one_line(
    tmp_path: Path, args: list[str], said: str
) -> None:
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    done = raytwin(tmp_path, *args, "empty.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_script_with_two_clusters_is_not_recorded(tmp_path: Path) -> None:
    script = "import ray\nfor _ in range(2):\n    ray.init()\n    ray.shutdown()\n"
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    done = raytwin(tmp_path, "record", "script.py")
    assert done.returncode == 2
    assert "a recording is of one cluster, and script.py has started 2" in done.stderr
