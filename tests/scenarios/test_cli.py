"""The command line: commands, their output, and the exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from raytwin.chaos.fuzz.run import campaign
from raytwin.scenarios.bench.conversation import BenchError
from raytwin.scenarios.bench.run import FULL, Effort
from raytwin.scenarios.cli import doctor
from raytwin.scenarios.cli.commands import figure_commands
from raytwin.scenarios.cli.commands.line import Terminated, parse_nodes
from raytwin.scenarios.cli.commands.measure_commands import ALONE_ROUNDS
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.core import measured_host, results
from raytwin.scenarios.core.scenario import BEYOND, Outcome, Request
from raytwin.scenarios.measure import registry, reproduction, runner
from raytwin.scenarios.peers import PeerError
from tests.scenarios import synthetic

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("synthetic_scenarios", "calibrations")


def raytwin(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="raytwin")


def complaint(result: Result) -> str:
    """Return the one line on stderr of a command that was refused."""
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    return lines[0]


# -- what is refused -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "scalin"], "did you mean 'scaling'?"),
        (["run", "zzz"], "possible: scaling, placement"),
        (["run", "fig7"], "figure 7 of the paper is not here: it has no measurement"),
        (["run", "Table_2"], "table 2 of the paper is not here"),
        (["run", "fig15"], "the paper has no figure 15: it has figures 1 to 14"),
        (["run"], "Missing argument"),
        (["run", "scaling", "--backend", "locl"], "did you mean 'local'?"),
        (["run", "scaling", "--backend", "sim,"], "possible: sim, local"),
        (["run", "failing", "--backend", "local"], "failing does not run on 'local'"),
        (["run", "scaling", "--nodes", "0"], "a whole number from 1 to"),
        (["run", "scaling", "--nodes", "-3"], "a whole number from 1 to"),
        (["run", "scaling", "--nodes", "abc"], "'abc' is no cluster size"),
        (["run", "scaling", "--nodes", "1,,2"], "'' is no cluster size"),
        (["run", "scaling", "--nodes", "2.5"], "'2.5' is no cluster size"),
        (["run", "scaling", "--nodes", "1e9"], "'1e9' is no cluster size"),
        (["run", "scaling", "--scale", "ful"], "did you mean 'full'?"),
        (["run", "scaling", "--seed", "x"], "--seed"),
        (["run", "scaling", "--seed", "-1"], "--seed"),
        (["run", "scaling", "--set", "task=3"], "did you mean 'tasks'?"),
        (["run", "scaling", "--set", "tasks"], "give name=value"),
        (["run", "scaling", "--set", "tasks=0"], "at least 1"),
        (["run", "scaling", "--set", "policies=best"], "one of bottom-up"),
        (["run", "scaling", "--noeds", "3"], "--nodes"),
        (["run", "scaling", "--profile", "absent.json"], "raytwin calibrate"),
        (["run", "scaling", "--noeds", "3"], "see 'raytwin run --help'"),
        (["run", "scaling", "--backend"], "see 'raytwin run --help'"),
        (["rum"], "run"),
        (["completion", "tcsh"], "'bash', 'zsh', 'fish'"),
        (["bench", "--peers", "dusk"], "no peer 'dusk'"),
        (["bench", "--json", "absent/f.json"], "cannot write absent/f.json"),
        (["fidelity", "--search", "0"], "--search"),
        (["fidelity", "--seed", "3"], "give --search N"),
        (["calibrate", "-o", "absent/p.json"], "cannot write absent/p.json"),
        (["report", "absent"], "absent does not exist"),
        (["report", "file"], "file is not a directory"),
        (["report", "empty"], "holds no results"),
        (["run", "scaling", "--out", "file"], "cannot write to file"),
        (["reproduce", "--out", "file/below"], "cannot write to file/below"),
    ],
)
def test_refused_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert said in complaint(raytwin(*arguments))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


def test_scenario_may_refuse(tmp_path: Path) -> None:
    result = raytwin("run", "picky", "--out", tmp_path)
    assert result.exit_code == 2
    assert "give --nodes 2" in result.stderr.splitlines()[-1]
    assert raytwin("run", "picky", "--nodes", 2, "--out", tmp_path).exit_code == 0


def test_report_names_the_broken_file(tmp_path: Path) -> None:
    assert raytwin("run", "scaling", "--backend", "sim", "--out", tmp_path).exit_code == 0
    (tmp_path / "scaling" / "sim" / "result.json").write_text("{")
    assert "scaling/sim/result.json" in complaint(raytwin("report", tmp_path))
    assert not (tmp_path / "report.html").exists()


def test_report_names_the_cell_that_is_no_number(tmp_path: Path) -> None:
    assert raytwin("run", "scaling", "--backend", "sim", "--out", tmp_path).exit_code == 0
    rows = tmp_path / "scaling" / "sim" / "rows.csv"
    rows.write_text(rows.read_text() + "bottom-up,5,0,fast\n")
    line = complaint(raytwin("report", tmp_path))
    assert "scaling/sim/rows.csv" in line
    assert "'tasks_per_s'" in line


# -- what is done --------------------------------------------------------------


def test_version_and_bare_help() -> None:
    assert raytwin("--version").stdout.startswith("raytwin ")
    assert "reproduce" in raytwin().stdout


def test_importing_the_command_line_is_light() -> None:
    heavy = "matplotlib", "pandas", "numpy", "simpy", "jinja2"
    code = (
        f"import sys, raytwin.scenarios.cli.main; print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["run", "report", "reproduce", "bench", "calibrate"])
def test_help_has_an_example(command: str) -> None:
    shown = " ".join(raytwin(command, "--help").stdout.split())
    assert f"raytwin {command}" in shown
    assert "Example" in shown


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rep", {"report", "reproduce", "replay"}),
        ("run fig8", {"fig8a", "fig8b"}),
        ("run fig8b --backend sim,lo", {"sim,local"}),
        ("exec --faults spo", {"spot"}),
    ],
)
def test_bash_completes_with_the_script_that_is_printed(
    line: str, offered: set[str], tmp_path: Path
) -> None:
    program = tmp_path / "raytwin"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m raytwin "$@"\n')
    program.chmod(0o755)
    script = raytwin("completion", "bash").stdout
    words = f"COMP_WORDS=(raytwin {line}); COMP_CWORD={len(line.split())}"
    asked = f'{words}; _raytwin_completion {program}; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize(("shell", "said"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_other_shells_complete_too(shell: str, said: str) -> None:
    result = raytwin("completion", shell)
    assert result.exit_code == 0
    assert f"{said} " in result.stdout
    assert "_RAYTWIN_COMPLETE" in result.stdout


def test_list() -> None:
    shown = raytwin("list").stdout
    assert "Empty tasks per second" in shown
    assert "scaling --set tasks=..." in shown
    assert "Empty tasks per second" in shown.splitlines()[1], "a row is a line where it is piped"


def test_list_for_programs() -> None:
    found = {each["name"]: each for each in json.loads(raytwin("list", "--json").stdout)}
    assert found["scaling"]["backends"] == ["sim", "local"]
    assert set(found["scaling"]["settings"]["tasks"]) == {"help", "quick", "full"}


def test_all_runs_every_scenario_where_it_can(tmp_path: Path) -> None:
    raytwin("run", "all", "--backend", "local", "--out", tmp_path)
    names = [each.record.scenario for each in results.read_all(tmp_path)]
    can = [name for name, each in synthetic.GOOD.items() if "local" in each.backends]
    assert sorted(names) == sorted(can)
    assert can


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"set -o pipefail; {sys.executable} -m raytwin list | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("scenario")


def test_run_writes_and_prints(tmp_path: Path) -> None:
    began_s = time.monotonic()
    result = raytwin(
        "run", "scaling", "--backend", "local,sim", "--nodes", "1,2", "--seed", 7,
        "--set", "tasks=55", "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "tasks_per_s_max" in result.stdout
    assert "every task ran" in result.stdout
    assert result.stdout.index("scaling on sim") < result.stdout.index("scaling on local")
    for backend in ("sim", "local"):
        value = json.loads((tmp_path / "scaling" / backend / "result.json").read_text())
        assert (value["scenario"], value["backend"], value["seed"]) == ("scaling", backend, 7)
        assert value["parameters"]["tasks"] == 55
        assert value["parameters"]["nodes"] == [1, 2]
        assert value["parameters"]["repeats"] == 5
        assert value["host"]["cores"] >= 1
        assert value["versions"]["python"]
        made = value["made"]
        assert made["command"] == (
            f"raytwin run scaling --backend {backend} --seed 7 --nodes 1,2 --set tasks=55"
        )
        assert datetime.fromisoformat(made["date"]).tzinfo is not None
        assert 0 <= made["duration_s"] <= time.monotonic() - began_s
        assert 0 <= made["load"] <= 1


def noted(out: Path, backend: str) -> str | None:
    """Return the digest of the prediction that a run of `scaling` has noted."""
    made = results.read(out / "scaling" / backend).record.made
    assert made is not None
    return made.prediction_sha256


@pytest.mark.parametrize("command", [["run", "scaling"], ["reproduce", "--quick"]])
def test_a_measurement_notes_the_digest_of_the_prediction_that_was_there_when_it_began(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prediction = tmp_path / "scaling" / "sim" / results.RESULT
    seen: list[str] = []

    def run(request: Request) -> Outcome:
        if request.backend == "local":
            seen.append(hashlib.sha256(prediction.read_bytes()).hexdigest())
        outcome = synthetic.SCALING.run(request)
        if request.backend == "local":
            prediction.write_bytes(prediction.read_bytes() + b"\n")  # replaced meanwhile
        return outcome

    some = {"scaling": replace(synthetic.SCALING, run=run)}
    monkeypatch.setattr(registry, "scenarios", lambda: some)
    monkeypatch.setattr(figure_commands, "_report", lambda *arguments: None)
    raytwin(*command, "--out", tmp_path)
    assert [noted(tmp_path, "local")] == seen


def test_a_measurement_notes_that_there_was_no_prediction(tmp_path: Path) -> None:
    for backend in ("local", "sim"):
        raytwin("run", "scaling", "--backend", backend, "--out", tmp_path)
    assert noted(tmp_path, "local") == "", "the one that is there now is of later"
    assert noted(tmp_path, "sim") is None


def test_the_report_says_which_prediction_was_replaced_after_its_measurement(
    tmp_path: Path,
) -> None:
    def sections() -> list[str]:
        """Return the scenarios whose prediction is said to be of later, each where that is."""
        assert raytwin("report", tmp_path).exit_code == 0
        said = (tmp_path / "report.html").read_text().split("Not predicted beforehand")[:-1]
        return [before.rpartition("<section aria-labelledby=")[2].split('"')[1] for before in said]

    assert raytwin("run", "scaling", "placement", "--out", tmp_path).exit_code == 0
    assert sections() == []
    again = ("run", "scaling", "--backend", "sim", "--profile", tmp_path / "profile.json")
    assert raytwin(*again, "--seed", 1, "--out", tmp_path).exit_code == 0
    assert sections() == ["scaling"]
    assert raytwin("run", "scaling", "--backend", "local", "--out", tmp_path).exit_code == 0
    assert sections() == []


def test_same_seed_same_rows(tmp_path: Path) -> None:
    rows = []
    for place, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / place
        assert raytwin("run", "placement", "--seed", seed, "--out", out).exit_code == 0
        rows.append((out / "placement" / "local" / "rows.csv").read_bytes())
    assert rows[0] == rows[1] != rows[2]


def test_failed_check_is_exit_one(tmp_path: Path) -> None:
    result = raytwin("run", "failing", "--out", tmp_path)
    assert result.exit_code == 1
    assert "FAILS" in result.stdout
    assert "1 is not 2" in result.stdout
    assert (tmp_path / "failing" / "sim" / "result.json").exists()


def test_broken_scenario_fails_alone(tmp_path: Path) -> None:
    stale = tmp_path / "broken" / "sim"
    stale.mkdir(parents=True)
    (stale / "result.json").write_text("{}")
    result = raytwin("run", "broken", "scaling", "--backend", "sim", "--out", tmp_path)
    assert result.exit_code == 1
    assert "RuntimeError: the scenario broke" in result.stdout
    assert "Traceback" in result.stderr
    assert not (stale / "result.json").exists()
    assert (tmp_path / "scaling" / "sim" / "result.json").exists()


def test_a_peer_that_fails_is_one_line_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(request: Request) -> Outcome:
        raise PeerError("MPI: rank 1: it failed")

    some = {"scaling": replace(synthetic.ALL["scaling"], run=failed)}
    monkeypatch.setattr(registry, "scenarios", lambda: some)
    result = raytwin("run", "scaling", "--backend", "sim", "--out", tmp_path)
    assert result.exit_code == 1
    assert "MPI: rank 1: it failed" in result.stdout
    assert "Traceback" not in result.output


# -- calibration ---------------------------------------------------------------


def profiled(out: Path, backend: str = "sim") -> bool:
    value = json.loads((out / "scaling" / backend / "result.json").read_text())
    return "profile" in value["parameters"]


def test_calibrated_once_where_something_is_predicted(
    tmp_path: Path, calibrations: list[object]
) -> None:
    assert raytwin("run", "scaling", "--out", tmp_path).exit_code == 0
    assert raytwin("run", "scaling", "--out", tmp_path).exit_code == 0
    assert len(calibrations) == 1
    assert json.loads((tmp_path / "profile.json").read_text()) == {"task_s": 0.001}
    assert profiled(tmp_path)
    assert profiled(tmp_path, "local")


def test_sim_alone_is_not_calibrated(tmp_path: Path, calibrations: list[object]) -> None:
    assert raytwin("run", "scaling", "--backend", "sim", "--out", tmp_path).exit_code == 0
    assert calibrations == []
    assert not profiled(tmp_path)


def test_sim_alone_takes_a_profile_that_is_given(
    tmp_path: Path, calibrations: list[object]
) -> None:
    profile = tmp_path / "p.json"
    assert raytwin("calibrate", "-o", profile).exit_code == 0
    out = tmp_path / "r"
    arguments = ("run", "scaling", "--backend", "sim", "--out", out, "--profile", profile)
    assert raytwin(*arguments).exit_code == 0
    assert len(calibrations) == 1
    assert profiled(out)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_profile_that_is_none(tmp_path: Path, content: str) -> None:
    profile = tmp_path / "p.json"
    profile.write_text(content)
    assert "raytwin calibrate" in complaint(
        raytwin("run", "scaling", "--out", tmp_path / "r", "--profile", profile)
    )


# -- the rest ------------------------------------------------------------------


def test_reproduce_ends_with_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = {"beyond": replace(synthetic.ALL["broken"], name="beyond", figure=BEYOND)}
    monkeypatch.setattr(registry, "scenarios", lambda: synthetic.GOOD | beyond)
    result = raytwin("reproduce", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "beyond").exists()
    report = tmp_path / "report.html"
    assert str(report) in result.stdout.replace("\n", "")
    assert "Empty tasks per second" in report.read_text()


def test_reproduce_reports_what_failed(tmp_path: Path) -> None:
    some = {name: synthetic.ALL[name] for name in ("scaling", "failing", "broken")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "scenarios", lambda: some)
        result = raytwin("reproduce", "--quick", "--out", tmp_path)
    assert result.exit_code == 1
    text = (tmp_path / "report.html").read_text()
    assert "FAILS" in text
    assert "one is two" in text
    assert "4 of 5" in text


class Attempts:
    """Which of two scenarios was run on which backend, in this process or in one of the pool's;
    `placement` breaks on sim the first time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.clear()

    def run(self, name: str, request: Request) -> Outcome:
        with self.log.open("a") as log:
            log.write(f"{name} on {request.backend}\n")
        broken = self.log.with_suffix(".broken")
        if (name, request.backend) == ("placement", "sim") and not broken.exists():
            broken.touch()
            raise RuntimeError("it broke")
        return synthetic.ALL[name].run(request)

    def read(self) -> list[str]:
        return self.log.read_text().splitlines()

    def clear(self) -> None:
        self.log.write_text("")


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    ran = Attempts(tmp_path_factory.mktemp("attempts") / "log")
    some = {
        name: replace(synthetic.ALL[name], run=partial(ran.run, name))
        for name in ("scaling", "placement")
    }
    monkeypatch.setattr(registry, "scenarios", lambda: some)
    monkeypatch.setattr(runner, "commit", lambda: "c0ffee")
    monkeypatch.setattr(figure_commands, "_report", lambda *arguments: None)  # it takes long
    return ran


def test_a_reproduction_goes_on_where_it_failed(
    attempts: Attempts, calibrations: list[object], tmp_path: Path
) -> None:
    first = raytwin("reproduce", "--quick", "--out", tmp_path)
    assert first.exit_code == 1
    assert "taken over" not in first.stdout
    before = (tmp_path / "scaling" / "sim" / "result.json").read_bytes()
    attempts.clear()
    again = raytwin("reproduce", "--quick", "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert attempts.read() == ["placement on sim"]
    (line,) = (line for line in again.stdout.splitlines() if "taken over" in line)
    assert line.endswith(
        "(--fresh runs all anew): scaling on sim, scaling on local, placement on local"
    )
    assert (tmp_path / "scaling" / "sim" / "result.json").read_bytes() == before
    assert len(calibrations) == 1


@pytest.mark.parametrize("what", ["commit", "changed files", "scale", "seed", "fresh"])
def test_a_reproduction_takes_nothing_over_that_it_would_not_come_to(
    what: str, attempts: Attempts, calibrations: list[object],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    raytwin("reproduce", "--quick", "--out", tmp_path)
    attempts.clear()
    arguments = ["--quick"]
    if what == "scale":
        arguments = []
    elif what == "seed":
        arguments += ["--seed", "1"]
    elif what == "fresh":
        arguments += ["--fresh"]
    else:
        monkeypatch.setattr(runner, "commit", lambda: {"commit": "deed"}.get(what, "c0ffee+"))
    result = raytwin("reproduce", *arguments, "--out", tmp_path)
    assert "taken over from" not in result.stdout.replace("is taken over from an earlier one", "")
    assert len(attempts.read()) == 4
    assert ("files differ from the commit" in result.stdout) == (what == "changed files")
    assert len(calibrations) == 1 + (what == "fresh")


def test_a_reproduction_says_where_it_is_and_how_long_the_rest_takes(
    attempts: Attempts, tmp_path: Path
) -> None:
    first = raytwin("reproduce", "--quick", "--out", tmp_path).stderr.splitlines()
    assert "simulating 2 of 2" in first, "nothing is known yet"
    assert "1 of 2, about 10 s left: scaling on local" in first
    assert "2 of 2, about 10 s left: placement on local" in first
    record = results.read(tmp_path / "scaling" / "sim").record
    assert record.made is not None
    record.made.duration_s = 200.0
    (tmp_path / "scaling" / "sim" / "result.json").write_bytes(msgspec.json.encode(record))
    attempts.clear()
    arguments = ("reproduce", "--quick", "--seed", 1, "--out", tmp_path)
    second = raytwin(*arguments).stderr.splitlines()
    left_s = (200 + 200 / 3) / measured_host.cores()  # 200, 0 and 0 s, and their mean
    assert f"simulating 2 of 2, {reproduction.spoken(left_s)} left" in second
    assert "1 of 2, about 10 s left: scaling on local" in second


def test_report_where_it_is_wanted(tmp_path: Path) -> None:
    assert raytwin("run", "scaling", "--backend", "sim", "--out", tmp_path).exit_code == 0
    target = tmp_path / "mine.html"
    assert raytwin("report", tmp_path, "-o", target).exit_code == 0
    assert target.read_text().startswith("<!doctype html>")
    assert "head.turn_s" not in target.read_text()
    (tmp_path / "profile.json").write_text('{"head": {"turn_s": 0.5}}')
    assert raytwin("report", tmp_path, "-o", target).exit_code == 0
    assert "head.turn_s" in target.read_text(), "what lies beside results is in it"


After = Callable[[dict[str, object]], None]
TASKS_SYNC: dict[str, object] = {
    "name": "tasks_sync", "ours": 2000.0, "peers": {}, "ratio": None, "ratios": {},
    "unit": "tasks/s",
}  # fmt: skip


def test_bench_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_bench(
        peers: list[str], path: Path | None, progress: object, effort: Effort, after: After
    ) -> None:
        asked.append((peers, path, effort))
        after(TASKS_SYNC)

    monkeypatch.setattr("raytwin.scenarios.bench.run.run_bench", run_bench)
    result = raytwin("bench", "--json", tmp_path / "f.json")
    assert result.exit_code == 0, result.output
    alone = replace(FULL, rounds=ALONE_ROUNDS, fresh_rounds=ALONE_ROUNDS)
    assert asked == [([], tmp_path / "f.json", alone)]
    assert "tasks_sync" in result.stdout
    assert "2,000" in result.stdout


def test_bench_of_some_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def run_bench(
        peers: list[str], path: Path | None, progress: object, effort: Effort, after: After
    ) -> None:
        names.append(effort.names)

    monkeypatch.setattr("raytwin.scenarios.bench.run.run_bench", run_bench)
    result = raytwin("bench", "--cases", "actor_sync, create_2000_actors")
    assert result.exit_code == 0, result.output
    assert names == [("actor_sync", "create_2000_actors")]
    assert "did you mean 'actor_sync'" in complaint(raytwin("bench", "--cases", "actor_snc"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--markdown", "f.md"], "--markdown is the table of --against REV"),
        (["--against", "HEAD", "--peers", "ray"], "leave --peers and --history out"),
        (["--against", "HEAD", "--cases", "sim:tasks_snc"], "did you mean 'sim:tasks_sync'"),
        (["--against", "no-such-commit"], "'no-such-commit' is neither a commit of"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(arguments: list[str], said: str) -> None:
    assert said in complaint(raytwin("bench", *arguments))


@pytest.mark.parametrize("verdict", ["slower", "undecided"])
def test_the_gate_exits_with_1_and_names_the_case(
    verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "name": "tasks_sync", "statistic": "cpu", "slowdown": 0.05, "low": 0.03, "high": 0.07,
        "verdict": verdict, "old_s": [1.0], "new_s": [1.05], "suspected": 0,
    }  # fmt: skip
    sides = {side: {"label": side, "commit": ""} for side in ("old", "new")}
    found = {"kind": "against", "rows": [row], "threshold": 0.02, "load": 0.5, **sides}
    monkeypatch.setattr("raytwin.scenarios.bench.gate.compare_trees", lambda *arguments: found)
    monkeypatch.setattr("raytwin.scenarios.bench.trees.other_tree", nullcontext)
    paths = ["--json", tmp_path / "f.json", "--markdown", tmp_path / "f.md"]
    result = raytwin("bench", "--against", "main", *paths)
    assert result.exit_code == (1 if verdict == "slower" else 0)
    assert ("slower than the threshold: tasks_sync (cpu)" in result.stderr) == (verdict == "slower")
    assert "+5.0 % (+3.0 to +7.0)" in result.stdout
    assert json.loads((tmp_path / "f.json").read_text()) == found
    assert "`tasks_sync`" in (tmp_path / "f.md").read_text()


def test_compare_exits_with_1_where_a_file_is_slower(tmp_path: Path) -> None:
    row = {"name": "tasks_sync", "statistic": "cpu", "new_s": [1.0] * 12}
    old = {"kind": "against", "host": {"cpu": "x"}, "rows": [row]}
    for name, factor in (("old", 1.0), ("new", 1.1)):
        slower = {**row, "new_s": [factor] * 12}
        (tmp_path / name).write_text(json.dumps({**old, "rows": [slower]}))
    assert raytwin("compare", tmp_path / "old", tmp_path / "old").exit_code == 0
    result = raytwin("compare", tmp_path / "old", tmp_path / "new")
    assert result.exit_code == 1
    assert "slower than the threshold: tasks_sync (cpu)" in result.stderr
    assert raytwin("compare", tmp_path / "old", tmp_path / "new", "--threshold", 20).exit_code == 0
    (tmp_path / "new").write_text(json.dumps({**old, "host": {"cpu": "y"}}))
    assert "of different hosts" in complaint(raytwin("compare", tmp_path / "old", tmp_path / "new"))


def test_bench_table_with_a_peer_that_lacks_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_bench(
        peers: list[str], path: Path | None, progress: object, effort: Effort, after: After
    ) -> None:
        after(
            {
                "name": "create_100_actors", "ours": 50.0, "peers": {"ray": 2.0}, "ratio": 25.0,
                "ratios": {"ray": 25.0}, "unit": "actors/s",
            }
        )  # fmt: skip

    monkeypatch.setattr("raytwin.scenarios.bench.run.run_bench", run_bench)
    monkeypatch.setattr("raytwin.scenarios.bench.peers.check_peers", lambda peers: None)
    result = raytwin("bench", "--peers", "ray,dask")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "create_100" in line)
    assert line.split() == ["create_100_actors", "50", "2", "25.0x", "actors/s"]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "raytwin: interrupted; 1 of 2 cases were measured"),
        (Terminated(), 143, "raytwin: terminated; 1 of 2 cases were measured"),
        (BenchError("ours has ended"), 1, "raytwin: ours has ended"),
    ],
)
def test_bench_that_does_not_get_to_its_end_shows_what_is_complete(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_bench(
        peers: list[str], path: Path | None, progress: object, effort: Effort, after: After
    ) -> None:
        after(TASKS_SYNC)
        raise error

    monkeypatch.setattr("raytwin.scenarios.bench.run.run_bench", run_bench)
    result = raytwin("bench", "--cases", "tasks_sync,actor_sync")
    assert result.exit_code == code
    assert result.stderr.splitlines() == [said]
    assert "2,000" in result.stdout


def test_an_interrupted_command_that_keeps_nothing_says_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calibrate(path: Path, progress: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raytwin.scenarios.measure.runner.calibrate", calibrate)
    result = raytwin("calibrate", "-o", tmp_path / "profile.json")
    assert result.exit_code == 130
    assert result.stderr.splitlines() == ["raytwin: interrupted"]


@pytest.mark.parametrize(("works", "code"), [(True, 0), (False, 1)])
def test_doctor(works: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        doctor.Finding("a task on sim", works, "sim", "it was [tried]", "mend it"),
        doctor.Finding("ray", False, "bench --peers ray", "not installed", "pip install ray"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: iter(found))
    result = raytwin("doctor")
    assert result.exit_code == code
    assert "a task on sim: it was [tried]" in result.stdout
    assert "to get it: pip install ray" in result.stdout
    result = raytwin("doctor", "--json")
    assert result.exit_code == code
    assert [each["ok"] for each in json.loads(result.stdout)] == [works, False]


def test_parse_nodes() -> None:
    assert parse_nodes(None) is None
    assert parse_nodes("10") == (10,)
    assert parse_nodes("1, 2,4,2") == (1, 2, 4)


def test_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.synthetic", "run", "scaling", "endless",
         "--backend", "sim", "--out", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip() == "endless":
                break
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    lines = [line for line in err.splitlines() if not line.startswith("endless")]
    assert lines == ["raytwin: interrupted; what had been completed is kept"]
    assert "scaling on sim" in out
    assert (tmp_path / "scaling" / "sim" / "result.json").exists()
    assert not (tmp_path / "endless").exists()


@pytest.mark.parametrize(("options", "jobs"), [((), os.cpu_count()), (("--jobs", "3"), 3)])
def test_the_fuzz_uses_every_core(
    options: tuple[str, ...], jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def run_seeds(seeds: range, jobs: int, lossless: bool) -> Iterator[None]:
        used.append(jobs)
        yield from ()

    monkeypatch.setattr(campaign, "run_seeds", run_seeds)
    raytwin("fuzz", "--seeds", "1000", "--out", tmp_path, *options)
    assert used == [jobs]
