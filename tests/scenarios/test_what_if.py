"""`raytwin whatif`: a script predicted on several clusters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from raytwin.reports import what_if as report
from raytwin.scenarios.cli import what_if as what_if_module
from raytwin.scenarios.cli.machine_use import MachineUse
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.cli.what_if import (
    Death,
    Found,
    Point,
    findings,
    knee,
    page,
    rows,
    seconds_of,
)
from raytwin.scenarios.core.scenario import UsageError
from raytwin.simulator.cluster.cluster_usage import Usage

LIMIT_S = 120.0

SCRIPT = """
import sys, time
import ray

@ray.remote(max_retries=-1)
def nap():
    time.sleep(1)

ray.init()
print(len(ray.get([nap.remote() for _ in range(int(sys.argv[1]))])))
"""


def what_if(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "raytwin", "whatif", *args], cwd=folder,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_more_nodes_shorten_and_faults_lengthen_the_makespan(tmp_path: Path) -> None:
    done = what_if(
        tmp_path, "--nodes", "3,12", "--faults", "none,spot", "--cpus-per-node", "2", "--cost",
        "declared", "--json", "script.py", "24",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    points: list[dict[str, Any]] = json.loads(done.stdout)["points"]
    makespans_s = {(each["nodes"], each["faults"]): each["makespan_s"] for each in points}
    assert 4 <= makespans_s[3, "none"] < 4.5
    assert 1 <= makespans_s[12, "none"] < 1.5
    assert makespans_s[3, "spot"] > makespans_s[3, "none"] + 0.5
    assert [round(each["usage"]["cpus"]) for each in points][::2] == [6, 24]
    assert points[0]["usage"]["tasks"] == 24


def test_a_latency_is_that_of_the_links_between_hosts(tmp_path: Path) -> None:
    done = what_if(
        tmp_path, "--nodes", "2", "--latency", "1us,200ms", "--policy", "random",
        "--cpus-per-node", "1", "--cost", "declared", "script.py", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    header, fast, slow = (line.split() for line in done.stdout.splitlines()[:3])
    assert header[:4] == ["nodes", "latency", "policy", "makespan"]
    assert (fast[:3], slow[:3]) == (["2", "1us", "random"], ["2", "200ms", "random"])
    assert float(slow[3]) > float(fast[3]) + 0.2, "a task was placed over the link"


ACTOR = """
import sys, time
import ray

@ray.remote
class Actor:
    def call(self):
        time.sleep(float(sys.argv[2]))

ray.init()
actor = Actor.options(num_cpus=int(sys.argv[1])).remote()
for _ in range(20):
    ray.get(actor.call.remote())
time.sleep(1)
"""


def said_of_accuracy(folder: Path, *args: str) -> str:
    """Return what `whatif` says of the accuracy for an actor; the page has it, too."""
    (folder / "actor.py").write_text(ACTOR, encoding="utf-8")
    done = what_if(
        folder, "--nodes", "1,2", "--cost", "declared", "-o", "page.html", "--json", "actor.py",
        *args,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: str = json.loads(done.stdout)["findings"][-1]
    assert said in (folder / "page.html").read_text()
    return said


def test_no_accuracy_is_promised_of_empty_calls_whose_actor_reserves_a_cpu(tmp_path: Path) -> None:
    said = said_of_accuracy(tmp_path, "1", "0")
    assert said.startswith("Bodies of tasks and calls take 0 in the mean. Below 10 ms no accuracy")


def test_accuracy_is_promised_of_long_calls_whose_actor_reserves_no_cpu(tmp_path: Path) -> None:
    said = said_of_accuracy(tmp_path, "0", "0.105")
    # The actor's creation is one of 21 bodies.
    assert said.startswith("Bodies of tasks and calls take 100 ms in the mean. Accuracy is")


BURSTS = """
import sys, time
import ray

@ray.remote
def nap():
    time.sleep(0.005)

ray.init()
for _ in range(5):
    ray.get([nap.remote() for _ in range(int(sys.argv[1]))])
if "then" in sys.argv:
    ray.shutdown()
    ray.init()
    time.sleep(9)
if "strict" in sys.argv:
    assert ray.init(ignore_reinit_error=True).cluster.config.spill_wait_s >= 0.02, "too low"
"""


def bursts(folder: Path, command: list[str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command of raytwin on bursts of tasks, on nodes whose thresholds have 8 of them."""
    (folder / "bursts.py").write_text(BURSTS, encoding="utf-8")
    given = ["--nodes", "4", "--cpus-per-node", "2", "--cost", "declared"]
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *command, *given, "bursts.py", *args], cwd=folder,
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip


def test_a_prediction_near_a_threshold_has_both_sides(tmp_path: Path) -> None:
    done = bursts(tmp_path, ["whatif", "--json", "-o", "page.html"], "12")
    found: dict[str, Any] = json.loads(done.stdout)
    (point,) = found["points"]
    tally, (lower, higher) = point["usage"]["threshold"], point["sides"]
    assert tally["near"] > 0.05 * tally["tasks"]
    assert lower["spill_wait_s"] == pytest.approx(0.016)
    assert higher["spill_wait_s"] == pytest.approx(0.024)
    assert lower["makespan_s"] != point["makespan_s"] != higher["makespan_s"]
    (said,) = [each for each in found["findings"] if each.startswith("Near a threshold at 4: ")]
    assert said.endswith(
        f" with 16 ms the makespan is {lower['makespan_s']:.4g} s, with 24 ms the makespan is"
        f" {higher['makespan_s']:.4g} s."
    )
    assert said in (tmp_path / "page.html").read_text()
    alone = bursts(tmp_path, ["exec", "--backend", "sim", "--spill-wait-s", "0.016"], "12")
    assert f"makespan {lower['makespan_s']:.4g} s," in alone.stderr, "exec gives a side, too"


def test_a_side_on_which_the_program_fails_leaves_the_prediction(tmp_path: Path) -> None:
    """Of several clusters of a script one that is near the threshold suffices."""
    done = bursts(tmp_path, ["whatif", "--json"], "12", "then", "strict")
    found: dict[str, Any] = json.loads(done.stdout)
    (point,) = found["points"]
    assert point["usage"]["makespan_s"] == pytest.approx(9, rel=0.01), "the longest is another one"
    lower, higher = point["sides"]
    assert (lower["makespan_s"], lower["failed"]) == (None, "AssertionError: too low")
    assert higher["makespan_s"] > 9
    (said,) = [each for each in found["findings"] if each.startswith("Near a threshold at 4: ")]
    assert "with 16 ms the program fails (AssertionError: too low), with 24 ms" in said


def test_a_prediction_far_from_the_threshold_says_nothing_of_it(tmp_path: Path) -> None:
    found = json.loads(bursts(tmp_path, ["whatif", "--json"], "4").stdout)
    assert found["points"][0]["sides"] == []
    assert not any("threshold" in each for each in found["findings"])


def test_exec_names_what_gives_both_sides_of_a_threshold(tmp_path: Path) -> None:
    command = ["exec", "--backend", "sim"]
    (line,) = [
        line for line in bursts(tmp_path, command, "12").stderr.splitlines() if "threshold" in line
    ]
    assert line.startswith("raytwin: near a threshold: ")
    assert "--spill-wait-s 0.016 and --spill-wait-s 0.024 give both sides" in line
    assert "threshold" not in bursts(tmp_path, command, "4").stderr


def test_the_threshold_of_the_command_line_leaves_a_scripts_other_timers(tmp_path: Path) -> None:
    (tmp_path / "timers.py").write_text(
        "import ray\n"
        "config = ray.init(timers={'spill_wait_s': 1.0, 'linger_s': 0.002}).cluster.config\n"
        "print(config.spill_wait_s, config.linger_s)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", "--backend", "sim", "--spill-wait-s", "0.5",
         "timers.py"], cwd=tmp_path,
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0.5", "0.002"]


def test_predictions_are_printed_and_then_measured_on_this_machine(tmp_path: Path) -> None:
    paper = files("raytwin.simulator").joinpath("profiles", "paper.json").read_bytes()
    here = {**json.loads(paper), "cores": os.cpu_count()}
    (tmp_path / "here.json").write_text(json.dumps(here), encoding="utf-8")
    done = what_if(
        tmp_path, "--nodes", "2,1", "--cpus-per-node", "1", "--measure", "2", "--profile",
        "here.json", "-o", "page.html", "--json", "script.py", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    two, one = found["points"]
    for point, naps in (two, 1), (one, 2):
        assert naps <= point["makespan_s"] < naps + 0.5
        assert len(point["measured_s"]) == 2 and min(point["measured_s"]) >= naps
        pairs = list(zip(point["predicted_s"], point["measured_s"], strict=True))
        assert point["makespan_s"] == min(point["predicted_s"]), "the lower median of two"
        assert point["error"] == pytest.approx(sum(one / other for one, other in pairs) / 2 - 1)
        assert 0 <= point["others_share"] <= 1
    said = done.stderr.splitlines()
    steps = [
        line for line in said if re.fullmatch("(recording|measuring) [^:]+|predicted .+", line)
    ]
    assert steps == [
        line
        for number in range(2)
        for line in (
            "recording script.py",
            *(
                f"predicted at {n}: {each['predicted_s'][number]:.4g} s"
                for n, each in ((2, two), (1, one))
            ),
            f"measuring script.py, {number + 1} of 2",
        )
    ]
    assert found["findings"][-1].startswith("The predictions are ")
    assert ">measured<" in (tmp_path / "page.html").read_text()


class Said:
    """A `Progress` that keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, label: str, total: float | None = None) -> None:
        self.lines.append(label)

    def advance(self, amount: float = 1.0) -> None:
        """Nothing is kept."""

    def say(self, text: str) -> None:
        self.lines.append(text)


def measured(
    monkeypatch: pytest.MonkeyPatch, anew: list[float] | None
) -> tuple[what_if_module.Point, list[str]]:
    """Measure a point of 3 s three times, with 2, 4 and 8 s; `anew` are the further predictions."""
    took_s = iter((2.0, 4.0, 8.0))
    monkeypatch.setattr(
        what_if_module._Runs, "run", lambda *_: ([MachineUse(next(took_s), 1.0, 0.0)], "")
    )

    def point(makespan_s: float) -> what_if_module.Point:
        usage = Usage(makespan_s, 1, 1, 0, 0, 0, {})
        return what_if_module.Point(1, None, None, None, makespan_s, usage)

    further = iter(anew or ())
    said = Said()
    (found,) = what_if_module.measure(
        Path("a.py"), [], [point(3.0)], None if anew is None else lambda: [point(next(further))],
        [], 3, said,
    )  # fmt: skip
    return found, said.lines


def test_each_measurement_has_a_prediction_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = measured(monkeypatch, [1.0, 2.0])
    assert (found.predicted_s, found.measured_s) == ((3.0, 1.0, 2.0), (2.0, 4.0, 8.0))
    assert found.makespan_s == found.usage.makespan_s == 2.0
    assert found.errors == [0.5, -0.75, -0.75] and found.error == -0.75
    assert [line for line in said if line.startswith("predicted")] == [
        f"predicted at 1: {each} s" for each in (3, 1, 2)
    ]
    assert "its own prediction" in what_if_module.errors([found])


def test_a_prediction_that_cannot_change_is_made_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, said = measured(monkeypatch, None)
    assert (found.makespan_s, found.predicted_s) == (3.0, (3.0, 3.0, 3.0))
    assert found.error == 3.0 / 4.0 - 1
    assert sum(line.startswith("predicted") for line in said) == 1
    assert "its own prediction" not in what_if_module.errors([found])


def test_a_recording_is_measured_as_well_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    for command in (
        ["record", "-o", "graph.json", "--cpus-per-node", "1", "script.py", "1"],
        ["exec", "--usage", "used.json", "graph.json"],
    ):
        subprocess.run(
            [sys.executable, "-m", "raytwin", *command], cwd=tmp_path, check=True,
            capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
    (used,) = json.loads((tmp_path / "used.json").read_text())
    assert used["makespan_s"] >= 1 and used["own_cpu_s"] > 0 <= used["others_cpu_s"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nodes", "0"], "--nodes '0' is no cluster size"),
        (["--latency", "3"], "--latency '3' is no time: give a number and us, ms or s, as 0.1ms"),
        (["--deaths"], "--deaths compares runs on clusters of one size: give --nodes"),
        (["--policy", "randon"], "did you mean 'random'?"),
        (["--nodes", "2"], "script.py failed at 2: IndexError: list index out of range"),
        (["--price", "-1"], "--price -1.0 is no price: give what a node costs for an hour, as 0.5"),
        (["--measure", "1"], "give --profile FILE, which 'raytwin calibrate' writes"),
        (["--measure", "1", "--latency", "1ms"], "--measure runs all nodes on this machine: leave"),
        (["--oversubscription", "2"], "the uplinks of racks: give --hosts-per-rack"),
        (["--measure", "1", "--hosts-per-rack", "2"], "machine: leave --hosts-per-rack out"),
        (["-o", "no/such/page.html"], "no/such/page.html: No such file or directory; give"),
    ],
)
def test_what_cannot_be_predicted_gets_one_line(
    tmp_path: Path,
    args: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        app(["whatif", *args, "script.py"])
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, ""), err
    assert said in err.splitlines()[-1]


def test_a_script_that_fails_as_it_is_recorded_has_its_own_last_word(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import ray\nray.init()\nraise SystemExit('no such option')\n", "utf-8")
    with pytest.raises(UsageError, match=r"failed as it was recorded: no such option$"):
        what_if_module.record(script, [], 1, 1, tmp_path / "recording.json")


def test_a_latency_is_a_number_with_a_unit() -> None:
    assert [seconds_of(text) for text in ("0.5ms", "20us", "2 s", ".5s")] == [5e-4, 2e-5, 2, 0.5]
    for text in ("", "ms", "1h", "-1ms"):
        with pytest.raises(UsageError):
            seconds_of(text)


def test_the_table_has_columns_of_what_is_varied_alone() -> None:
    usage = Usage(2.0, 1, 4.0, 8, 0, 0, {"cpus": 0.5, "driver": 0.75})
    columns, table = rows([Point(1, None, None, None, 2.0, usage)] * 2)
    assert columns == ["nodes", "makespan", "of the first", "CPUs reserved", "busiest"]
    assert table == [["1", "2 s", "1", "50%", "driver 75%"]] * 2


def point(nodes: int, makespan_s: float, policy: str | None = None) -> Point:
    usage = Usage(makespan_s, nodes, 2.0 * nodes, 8, 0, 0, {"cpus": 0.5})
    return Point(nodes, None, policy, None, makespan_s, usage, 0.25 * nodes * makespan_s)


def test_the_knee_is_where_efficiency_over_time_is_greatest() -> None:
    # Of a program whose half is serial: 1 / (nodes x makespan^2) is greatest at 1 node; of one with
    # a hundredth that is serial by Amdahl's law, at 1 / 0.01 - 1 = 99 of these sizes.
    for serial, best in (0.5, 1), (0.01, 99):
        curve = [point(n, serial + (1 - serial) / n) for n in (1, 10, 50, 99, 200, 1000)]
        found = knee(curve)
        assert found is not None and found.nodes == best
    assert knee(curve[:2]) is None
    parallel = [point(n, 1 / n) for n in (1, 4, 16)]
    assert knee(parallel) is None, "of the sizes asked for the largest is no knee"
    assert findings(Found(parallel, []))[0] == "The knee is not reached with 16 nodes."


def test_what_predictions_come_to_is_said_in_sentences() -> None:
    times_s = {(1, "a"): 10, (1, "b"): 10, (10, "a"): 2, (10, "b"): 2.5, (99, "a"): 1, (99, "b"): 2}
    points = [point(nodes, float(time), policy) for (nodes, policy), time in times_s.items()]
    deaths = [
        Death("10 a", "node 9", 3.0, 0.5),
        Death("10 a", "head", None, None, "ActorDiedError: <why>"),
        Death("10 b", "node 9", 3.0, 0.2),
    ]
    found = Found(points, deaths)
    said = findings(found)
    assert said[0].startswith("The knee for a is at 10 nodes, where nodes x makespan^2 is least")
    assert said[1].startswith("The knee for b is at 10 nodes")
    assert said[2:-1] == [
        "The least cost is 2.5, for 1, a.",
        "a wins on 3 of 3 clusters: b, the next, takes 25.0% longer in the median.",
        "The program does not survive the death of head at 10 a.",
        "The death that costs most of those survived is of node 9 at 10 a: +50.0% of the makespan.",
    ]
    columns, table = rows(points)
    assert columns[-2:] == ["cost", ""]
    assert [row[-2:] for row in table[:4]] == [
        ["2.5", ""],
        ["2.5", ""],
        ["5", "knee"],
        ["6.25", "knee"],
    ]
    html = report.render(page("<script>.py", "raytwin whatif", found))
    assert html == report.render(page("<script>.py", "raytwin whatif", found))
    assert "ActorDiedError: &lt;why&gt;" in html and "&lt;script&gt;.py" in html
    assert html.count("<svg") == 1 and "http://" not in html
    equal = findings(Found([point(1, 1.0, "a"), point(1, 1.005, "b")]))
    assert "No policy wins: their makespans differ by 1% at most." in equal


@pytest.mark.parametrize(
    ("means_s", "said"),
    [
        ([0.02, 0.02], "Bodies of tasks and calls take 20 ms in the mean. Accuracy is promised"),
        ([0.02, 0.005], "Bodies of tasks and calls take 5 ms to 20 ms, by cluster, in the mean. B"),
        ([None, 0.02], "Bodies of tasks and calls take 20 ms in the mean. Accuracy is promised"),
        ([None], "No task or call has ended: "),
    ],
)
def test_the_shortest_bodies_of_all_clusters_decide_on_accuracy(
    means_s: list[float | None], said: str
) -> None:
    points = [replace(point(1, 1.0), body_s=body_s) for body_s in means_s]
    assert findings(Found(points))[-1].startswith(said)


def test_bodies_are_those_of_all_clusters_of_a_script(tmp_path: Path) -> None:
    found = json.loads(bursts(tmp_path, ["whatif", "--json"], "4", "then").stdout)
    (only,) = found["points"]
    assert only["usage"]["tasks"] == 0, "the longest cluster has none"
    assert only["body_s"] == pytest.approx(0.005)


def test_a_death_is_of_each_kind_of_node_and_of_the_head(tmp_path: Path) -> None:
    done = what_if(
        tmp_path, "--nodes", "3", "--cpus-per-node", "2", "--cost", "declared", "--deaths",
        "--price", "3600", "-o", "page.html", "--json", "script.py", "24",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (only,), (node, head) = found["points"], found["deaths"]
    assert only["cost"] == pytest.approx(3 * only["makespan_s"])
    assert (node["killed"], head["killed"]) == ("node 2", "head")
    # Four naps for each CPU, of which the last two are shared by two thirds of them.
    assert node["makespan_s"] > only["makespan_s"] + 0.5
    assert node["slower"] == pytest.approx(node["makespan_s"] / only["makespan_s"] - 1)
    assert head["failed"] == "" and abs(head["slower"]) < 0.1
    assert "What a death costs" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [(["inf"], "give a number of seconds"), (["0.1", "--address", "auto"], "leave --address out")],
)
def test_exec_refuses_a_threshold_that_it_cannot_set(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        app(["exec", "--spill-wait-s", *options, str(tmp_path / "script.py")])
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2
    assert line.endswith(said)


def test_exec_refuses_an_unknown_policy_before_the_script_begins(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('runs')")
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", "--policy", "randon", "script.py"],
        cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "random" in line
