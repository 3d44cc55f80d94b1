"""The simulated figures are those in `scenarios/baselines`, and changes are reported.

The failure of `test_the_figures_are_those_of_the_baseline` says what moved. Where that is
meant: `raytwin baseline --update --scale all`, and say why in the commit's message.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

import raytwin as ray
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.core.scenario import Check, Outcome, Request, Scenario, Silent
from raytwin.scenarios.measure import baselines
from raytwin.scenarios.measure.baselines import FOLDER, LONG, Subject, chosen
from raytwin.scenarios.workloads.programs import bag_of_tasks
from raytwin.simulator.cluster.simulated_cluster import SimCluster


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("subject", chosen(), ids=lambda subject: subject.name)
def test_the_figures_are_those_of_the_baseline(subject: Subject) -> None:
    assert baselines.check(subject, Silent()) == []


def test_every_baseline_is_of_a_scenario() -> None:
    names = {subject.name for subject in chosen(scale="all")}
    assert {path.stem for path in FOLDER.glob("*.json")} <= names
    assert names > LONG


# -- what is told --------------------------------------------------------------


def run_bag(request: Request) -> Outcome:
    """A bag of tasks on two clusters; where it is told to, nothing is right."""
    outcome = Outcome(rows=[])
    for nodes in (1, 2):
        ray.init(backend="sim", nodes=nodes, seed=request.seed)
        outcome.metrics[f"elapsed_s_{nodes}_nodes"] = bag_of_tasks(nodes, 200, 50, False)
        ray.shutdown()
    return outcome


BAG = Scenario("bag", "A bag of tasks", "None", ("sim",), run_bag, about="")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the baselines of a small scenario, the only one there is."""
    monkeypatch.setattr("raytwin.scenarios.measure.registry.scenarios", lambda: {"bag": BAG})
    done = raytwin("--update", "--dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"bag.quick.json", "bag.full.json"}
    return tmp_path


def raytwin(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["baseline", *map(str, arguments)], prog_name="raytwin")


def alter(path: Path, policy: str, name: str, factor: float) -> None:
    """Multiply one number of a baseline; one of its metrics if there is no policy."""
    content = msgspec.json.decode(path.read_bytes())
    numbers = content["counts"][policy] if policy else content["metrics"]
    numbers[name] *= factor
    path.write_bytes(msgspec.json.encode(content))


def test_nothing_has_moved_when_it_runs_again(kept: Path) -> None:
    before = (kept / "bag.quick.json").read_bytes()
    done = raytwin("--check", "--dir", kept)
    assert done.exit_code == 0, done.output
    assert "bag.quick: holds" in done.stdout
    assert raytwin("--update", "--dir", kept).exit_code == 0
    assert (kept / "bag.quick.json").read_bytes() == before


def test_the_report_lists_moved_figures(kept: Path) -> None:
    alter(kept / "bag.quick.json", "bottom-up", "gcs_messages_per_task", 0.8)
    alter(kept / "bag.quick.json", "", "elapsed_s_2_nodes", 2)
    done = raytwin("--check", "--dir", kept)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("bag.quick: moved"))
    metric, count = lines[first + 1 : first + 3]
    assert metric.startswith("  elapsed_s_2_nodes: ") and metric.endswith("(-50 %)")
    assert count.startswith("  bottom-up: gcs_messages_per_task: ") and count.endswith("(+25 %)")
    assert lines[first + 3].startswith("bag.full: holds")
    assert lines[-1] == "1 of 2 baselines hold"


def test_a_count_is_exact_and_a_metric_nearly(kept: Path) -> None:
    path = kept / "bag.quick.json"
    alter(path, "", "elapsed_s_1_nodes", 1 + 1e-12)
    assert raytwin("--check", "--scale", "quick", "--dir", kept).exit_code == 0
    alter(path, "bottom-up", "gcs_bytes_per_task", 1 + 1e-12)
    assert raytwin("--check", "--scale", "quick", "--dir", kept).exit_code == 1


def test_a_number_that_comes_or_goes_has_moved(kept: Path) -> None:
    path = kept / "bag.quick.json"
    content = msgspec.json.decode(path.read_bytes())
    content["metrics"]["other"] = content["metrics"].pop("elapsed_s_1_nodes")
    path.write_bytes(msgspec.json.encode(content))
    done = raytwin("--check", "--scale", "quick", "--dir", kept)
    assert done.exit_code == 1
    assert "  elapsed_s_1_nodes: none -> " in done.stdout
    assert "  other: " in done.stdout and "-> none" in done.stdout


def test_a_scenario_without_a_baseline_fails(kept: Path) -> None:
    (kept / "bag.full.json").unlink()
    done = raytwin("--check", "--dir", kept)
    assert done.exit_code == 1
    assert "'raytwin baseline --update bag' writes it" in done.stdout


def test_a_broken_file_does_not_hold_and_an_update_mends_it(kept: Path) -> None:
    path = kept / "bag.quick.json"
    before = path.read_bytes()
    path.write_bytes(b"<<<<<<< ours\n" + before)
    done = raytwin("--check", "--dir", kept)
    assert done.exit_code == 1
    assert "bag.quick.json is no baseline" in done.stdout
    assert raytwin("--update", "--dir", kept).exit_code == 0
    assert path.read_bytes() == before


def test_figures_that_fail_their_own_check_are_not_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(request: Request) -> Outcome:
        return Outcome(rows=[], checks=[Check("it is fast", False, "1 task/s")])

    failing = Scenario("bag", "A bag of tasks", "None", ("sim",), run, about="")
    monkeypatch.setattr("raytwin.scenarios.measure.registry.scenarios", lambda: {"bag": failing})
    before = (kept / "bag.quick.json").read_bytes()
    for what in ("--check", "--update"):
        done = raytwin(what, "--dir", kept)
        assert done.exit_code == 1
        assert "check fails: it is fast: 1 task/s" in done.stdout
    assert (kept / "bag.quick.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --check to compare, or --update to write"),
        (["--check", "--update"], "give --check to compare, or --update to write"),
        (["--check", "fig8"], "did you mean 'fig8b'?"),
        (["--check", "--scale", "ful"], "did you mean 'full'?"),
        (["--check", "--dir", os.devnull], "is no directory"),
        (["--chek"], "No such option: --chek"),
    ],
)
def test_impossible_arguments_are_refused_in_one_line(arguments: list[str], said: str) -> None:
    done = raytwin(*arguments)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


# -- what is counted -----------------------------------------------------------


def test_counts_are_of_all_that_was_done() -> None:
    session = ray.init(backend="sim", nodes=2)
    cluster: SimCluster = session.cluster
    bag_of_tasks(2, 200, 50, False)
    ray.shutdown()
    counts = cluster.counts
    # Eight tasks and a submitter, twice, on each node before the clock starts.
    assert cluster.tasks == 200 + 2 * (8 + 1) + 2
    assert {"gcs", "global", "node", "worker", "driver"} <= set(counts)
    sent = sum(each.bytes for each in counts.values())
    # The network's bytes are those of the frames, and of what channels add: the set-up of each
    # connection, greetings and acknowledgements.
    added = sum(cluster.network.bytes_sent.values()) - sent
    assert 0 < added < 0.1 * sent


def test_a_worker_that_died_is_counted_still() -> None:
    session = ray.init(backend="sim", nodes=2)
    cluster = session.cluster
    bag_of_tasks(2, 200, 50, False)
    before = cluster.counts["worker"].turns
    cluster.kill_node(1)
    assert cluster.counts["worker"].turns == before > 0
    ray.shutdown()
