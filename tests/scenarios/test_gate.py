"""`raytwin bench --against` and `compare`: what rounds say, when there are enough, on which trees.

Noise is drawn here: the rounds of a machine are in `tests/gate_proof.py`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytwin.scenarios.bench import decision, files, gate, run, tables, trees
from raytwin.scenarios.bench.conversation import Conversation
from raytwin.scenarios.bench.decision import ROUNDS_MIN, Costs, Judged, decide
from raytwin.scenarios.bench.gate import Sample
from raytwin.scenarios.bench.intervals import Slowdown, Verdict, of_files, of_pairs
from raytwin.scenarios.cli.commands import measure_commands
from raytwin.scenarios.core.scenario import UsageError

THRESHOLD = 0.02


class Machine:
    """Rounds of a machine on which a unit costs 1 µs, whose noise is a factor of e to the `sd`.

    Noise has heavy tails (Student's t with three degrees of freedom), as that of a busy machine.
    """

    def __init__(self, seed: int, sd: float, slower: float = 0.0, only: str = "") -> None:
        self._rng = np.random.default_rng(seed)
        self._sd = sd
        self._slower, self._only = slower, only
        self.asked: list[list[str]] = []

    def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
        self.asked.append(list(subjects))
        return {name: {s: self._pair(name) for s in ("time", "cpu")} for name in subjects}

    def _pair(self, name: str) -> tuple[float, float]:
        slower = self._slower if name.startswith(self._only) else 0.0
        noise = self._sd / math.sqrt(3) * self._rng.standard_t(3)
        return 1e-6, 1e-6 * (1 + slower) * math.exp(noise)


def verdicts(judged: Sequence[Judged]) -> dict[str, Verdict]:
    return {f"{each.subject} {each.statistic}": each.verdict for each in judged}


# -- intervals ---------------------------------------------------------------------


def test_equal_rounds_have_an_interval_of_no_width() -> None:
    found = of_pairs([(2.0, 2.1)] * ROUNDS_MIN)
    assert found.low == pytest.approx(found.high) == pytest.approx(found.middle)
    assert found.middle == pytest.approx(0.05)


def test_the_same_rounds_give_the_same_interval() -> None:
    pairs = [(1.0, 1.0 + at / 100) for at in range(ROUNDS_MIN)]
    assert of_pairs(pairs) == of_pairs(pairs)


def test_an_interval_covers_what_is_true(seed: int) -> None:
    """Of 100 with 99.8 %, all but a few; and it is no wider than the noise makes it."""
    rng = np.random.default_rng(seed)
    true, sd, rounds = 0.05, 0.04, 24
    found = [
        of_pairs([(1.0, (1 + true) * math.exp(sd * rng.standard_normal())) for _ in range(rounds)])
        for _ in range(100)
    ]
    assert sum(not each.low <= true <= each.high for each in found) <= 3
    width = float(np.median([each.high - each.low for each in found]))
    expected = 2 * 3.09 * sd / math.sqrt(rounds) * (1 + true)
    assert 0.8 * expected < width < 1.5 * expected


def test_a_round_that_is_off_by_a_factor_changes_little() -> None:
    pairs = [(1.0, 1.0 + (at % 3) / 1000) for at in range(ROUNDS_MIN)]
    assert of_pairs([*pairs, (1.0, 8.0)]).middle < 0.01


def test_drift_of_the_machine_is_in_no_pair_but_in_two_files() -> None:
    drift = [2.0 ** (at / ROUNDS_MIN) for at in range(ROUNDS_MIN)]
    paired = of_pairs([(cost, 1.05 * cost) for cost in drift])
    assert paired.high - paired.low < 1e-9
    apart = of_files(drift, [1.05 * cost for cost in drift])
    assert apart.low < 0 < 0.05 < apart.high


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.021, 0.08, Verdict.SLOWER),
        (0.019, 0.08, Verdict.UNDECIDED),
        (-0.01, 0.02, Verdict.HOLDS),
        (-0.06, -0.03, Verdict.FASTER),
        (-0.06, 0.01, Verdict.HOLDS),
    ],
)
def test_only_an_interval_that_is_all_beyond_the_threshold_accuses(
    low: float, high: float, verdict: Verdict
) -> None:
    assert Slowdown((low + high) / 2, low, high).verdict(THRESHOLD) is verdict


# -- when there are enough rounds --------------------------------------------------


@pytest.mark.parametrize("sd", [0.02, 0.04])
def test_five_percent_are_found_in_the_case_that_has_them(sd: float, seed: int) -> None:
    machine = Machine(seed, sd, slower=0.05, only="slow")
    found = verdicts(decide(["slow", "same"], machine.take, THRESHOLD, 60))
    assert {name for name, each in found.items() if each is Verdict.SLOWER} <= {
        "slow time", "slow cpu"
    }  # fmt: skip
    assert Verdict.SLOWER in (found["slow time"], found["slow cpu"])


@pytest.mark.slow
@pytest.mark.parametrize("sd", [0.01, 0.1, 0.4])
def test_twenty_comparisons_of_a_commit_with_itself_accuse_nothing(sd: float, seed: int) -> None:
    for number in range(20):
        machine = Machine(seed + number, sd)
        found = decide(["a", "b", "c", "d"], machine.take, THRESHOLD, 24)
        assert Verdict.SLOWER not in verdicts(found).values()


def test_few_rounds_are_enough_where_there_is_no_noise() -> None:
    machine = Machine(1, 0.001)
    found = decide(["a"], machine.take, THRESHOLD, 60)
    assert set(verdicts(found).values()) == {Verdict.HOLDS}
    assert len(machine.asked) == ROUNDS_MIN


def test_more_rounds_are_taken_of_what_is_undecided_alone() -> None:
    class Both(Machine):
        def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
            found = super().take(subjects)
            return {n: {"time": (1.0, 1.0)} if n == "quiet" else c for n, c in found.items()}

    machine = Both(1, 0.4)
    found = decide(["quiet", "noisy"], machine.take, THRESHOLD, 30)
    assert machine.asked[:ROUNDS_MIN] == [["quiet", "noisy"]] * ROUNDS_MIN
    assert machine.asked[ROUNDS_MIN:] == [["noisy"]] * (30 - ROUNDS_MIN)
    assert verdicts(found)["quiet time"] is Verdict.HOLDS
    assert verdicts(found)["noisy time"] is Verdict.UNDECIDED


def test_fewer_rounds_than_needed_decide_nothing() -> None:
    found = decide(["a"], Machine(1, 0.0, slower=1.0).take, THRESHOLD, ROUNDS_MIN - 1)
    assert set(verdicts(found).values()) == {Verdict.UNDECIDED}


def test_a_statistic_that_one_round_alone_has_is_left_out() -> None:
    class Once(Machine):
        def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
            found = super().take(subjects)
            return {"a": found["a"] if len(self.asked) == 1 else {"time": (1.0, 1.0)}}

    assert list(verdicts(decide(["a"], Once(1, 0.0).take, THRESHOLD, 20))) == ["a time"]


def test_nothing_is_accused_by_the_rounds_that_raised_the_suspicion() -> None:
    """What was slower while the first rounds were taken, and is not any more, is let pass."""

    class Passing(Machine):
        def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
            found = super().take(subjects)
            self._slower = 0.3 if len(self.asked) < ROUNDS_MIN else 0.0
            return found

    machine = Passing(1, 0.001, slower=0.3)
    (time, cpu) = decide(["a"], machine.take, THRESHOLD, 30)
    assert time.verdict is cpu.verdict is Verdict.HOLDS
    assert time.suspected == ROUNDS_MIN
    assert len(time.old) == len(time.new) == 2 * ROUNDS_MIN
    assert decision.row(time)["slowdown"] == pytest.approx(0, abs=0.01)


def test_what_only_the_second_pass_accuses_is_measured_a_third_time() -> None:
    class Late(Machine):
        def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
            self.asked.append(list(subjects))
            early = len(self.asked) <= ROUNDS_MIN
            return {"a": {"time": (1.0, 1.3 if early else 1.0), "cpu": (1.0, self.cpu(early))}}

        def cpu(self, early: bool) -> float:
            # Undecided at first, and slower from then on.
            return (0.9, 1.2)[len(self.asked) % 2] if early else 1.3

    machine = Late(1, 0.0)
    found = decide(["a"], machine.take, THRESHOLD, 30)
    assert verdicts(found) == {"a time": Verdict.HOLDS, "a cpu": Verdict.SLOWER}
    assert len(machine.asked) == 3 * ROUNDS_MIN


def test_suspicions_without_end_come_to_one() -> None:
    """Each pass suspects another statistic than the one before."""

    class Turns(Machine):
        def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
            turn = len(self.asked) // ROUNDS_MIN % 2
            self.asked.append(list(subjects))
            return {"a": {"time": (1.0, (1.3, 1.0)[turn]), "cpu": (1.0, (1.0, 1.3)[turn])}}

    machine = Turns(1, 0.0)
    found = decide(["a"], machine.take, THRESHOLD, 30)
    assert verdicts(found) == {"a time": Verdict.HOLDS, "a cpu": Verdict.UNDECIDED}
    assert len(machine.asked) == decision.PASSES_MAX * ROUNDS_MIN


# -- what a round is ---------------------------------------------------------------


def test_a_side_costs_what_its_cheapest_slice_did() -> None:
    old = [Sample(3.0, 1.0), Sample(2.0, 1.5)]
    new = [Sample(4.0, None), Sample(5.0, 1.0)]
    assert gate.costs_of(old, old) == {"time": (2.0, 2.0), "cpu": (1.0, 1.0)}
    # What a process had spent that has ended is not known: there is no CPU then.
    assert gate.costs_of(old, new) == {"time": (2.0, 4.0)}


def test_each_round_has_fresh_clusters_and_trees_take_turns_in_being_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[tuple[str, str, str]] = []

    class Side:
        def __init__(self, engine: str, tree: trees.Tree, hash_seed: int) -> None:
            self.who = engine, tree.label
            log.append((*self.who, f"seed {hash_seed}"))

        def __enter__(self) -> Side:
            return self

        def __exit__(self, *_: object) -> None:
            log.append((*self.who, "end"))

        def start(self) -> None:
            pass

        def ask(self, what: str, **details: Any) -> Any:
            log.append((*self.who, what))
            return (4.0, 0.5) if what == "round" else None

    monkeypatch.setattr(gate, "Conversation", Side)
    rounds = gate.Rounds(trees.Tree("old"), trees.Tree("new"), slices=2)
    for _ in range(2):
        found = rounds.take(["tasks_sync", "sim:tasks_sync"])
        cpu = {"cpu": (0.5, 0.5)}
        assert found == {"tasks_sync": {"time": (0.25, 0.25), **cpu}, "sim:tasks_sync": cpu}
    ours = [(label, what) for engine, label, what in log if engine == "ours"]
    one, two = ours[: len(ours) // 2], ours[len(ours) // 2 :]
    assert one[:2] == [("old", "seed 1"), ("new", "seed 1")]
    assert two[:2] == [("new", "seed 2"), ("old", "seed 2")]
    order = [label for label, what in ours if what == "round"]
    assert order == ["old", "new", "new", "old", "new", "old", "old", "new"]
    # Whoever makes a case ready second is slower at it: neither tree is that more often.
    prepared = [label for label, what in ours if what == "prepare"]
    assert prepared == ["old", "new", "new", "old"]
    assert [what for _, what in one[-2:]] == ["end", "end"]
    assert {engine for engine, *_ in log} == {"ours", "simulated"}


# -- trees -------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, in place of this one."""
    root = tmp_path / "repository"
    root.mkdir()
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first", "--allow-empty"]):
        (root / "file").write_text("committed")
        names = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
        subprocess.run(["git", *names, *words], cwd=root, check=True)
    monkeypatch.setattr(trees, "ROOT", root)
    return root


def worktrees(root: Path) -> int:
    done = subprocess.run(
        ["git", "worktree", "list"], cwd=root, capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines())


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_commits_worktree_is_there_only_while_it_is_measured(
    error: type[BaseException] | None, repository: Path
) -> None:
    (repository / "file").write_text("changed")
    try:
        with trees.other_tree("HEAD") as tree:
            assert (tree.root / "file").read_text() == "committed"
            assert worktrees(repository) == 2
            assert trees.this_tree().commit == tree.commit + "+"
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    assert not tree.root.parent.exists()
    assert worktrees(repository) == 1


def test_neither_a_commit_nor_a_file(repository: Path) -> None:
    with (
        pytest.raises(UsageError, match="'absent' is neither a commit"),
        trees.other_tree("absent"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="is no Python that has raytwin"),
        trees.other_tree("/bin/false"),
    ):
        pass


def test_another_interpreter_runs_what_is_installed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a path of ours would lead it elsewhere."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "raytwin").mkdir()
    (tmp_path / "raytwin" / "__init__.py").touch()
    with trees.other_tree(sys.executable) as tree:
        assert tree.interpreter == sys.executable
        assert tree.installed
        assert (tree.root / "raytwin" / "runtime").exists()
        with Conversation("simulated", tree=tree) as conversation:
            conversation.start()


# -- files -------------------------------------------------------------------------


def bench_file(costs: dict[str, list[float]], cores: int = 2) -> dict[str, Any]:
    samples = {name: run.Samples({"ours": [1 / c for c in each]}) for name, each in costs.items()}
    rows = [run.row(run.CASES[name], each) for name, each in samples.items()]
    return {**run.document(rows, []), "host": {"cpu": "x", "cores": cores}}


def test_files_of_one_host_are_compared_case_by_case() -> None:
    rounds = [1.0 + at / 1000 for at in range(ROUNDS_MIN)]
    old = bench_file({"tasks_sync": rounds, "put_small": rounds, "get_small": rounds})
    new = bench_file({"tasks_sync": [1.1 * c for c in rounds], "put_small": rounds})
    rows = {row["name"]: row for row in files.compare(old, new, THRESHOLD)}
    assert list(rows) == ["tasks_sync", "put_small"]
    assert rows["tasks_sync"]["verdict"] == Verdict.SLOWER
    assert rows["tasks_sync"]["slowdown"] == pytest.approx(0.1)
    assert rows["put_small"]["verdict"] == Verdict.HOLDS


def test_files_with_few_rounds_decide_nothing() -> None:
    old, new = bench_file({"tasks_sync": [1.0] * 5}), bench_file({"tasks_sync": [2.0] * 5})
    assert files.compare(old, new, THRESHOLD)[0]["verdict"] == Verdict.UNDECIDED


def test_files_of_different_hosts_are_refused() -> None:
    old = bench_file({"tasks_sync": [1.0]})
    with pytest.raises(UsageError, match=r"different hosts \(cores 2 and 8\).*--against"):
        files.compare(old, bench_file({"tasks_sync": [1.0]}, cores=8), THRESHOLD)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("[]")
    with pytest.raises(UsageError, match="is not what 'raytwin bench --json' writes"):
        files.read(path)
    with pytest.raises(UsageError, match="cannot read"):
        files.read(tmp_path / "absent.json")


def document() -> dict[str, Any]:
    slow = Judged("tasks_sync", "cpu", Slowdown(0.05, 0.03, 0.07), Verdict.SLOWER, [1.0], [1.05])
    same = Judged("put_small", "cpu", Slowdown(0.0, -0.01, 0.01), Verdict.HOLDS, [1.0], [1.0])
    old = trees.Tree("main", commit="0123456789abcdef")
    return gate.document([same, slow], old, trees.Tree("this tree", commit="fedcba98765+"), 0.02)


def test_the_markdown_begins_with_what_is_slower(tmp_path: Path) -> None:
    lines = tables.markdown(document()).splitlines()
    assert lines[0] == "**slower than the threshold: tasks_sync (cpu); others: 1 holds**"
    assert "this tree (fedcba987+) against main (012345678)" in lines[2]
    first = lines.index("|---|---|---|---|---|") + 1
    assert lines[first] == "| `tasks_sync` | cpu | +5.0 % (+3.0 to +7.0) | 1 | slower |"
    held = {
        **document(),
        "rows": [row for row in document()["rows"] if row["name"] != "tasks_sync"],
    }
    assert tables.markdown(held).startswith("**nothing is slower; others: 1 holds**")


def test_a_file_keeps_every_round_and_what_it_was_measured_on(tmp_path: Path) -> None:
    files.write(tmp_path / "f.json", document())
    found = files.read(tmp_path / "f.json")
    assert found == json.loads(json.dumps(document())) | {"date": found["date"]}
    assert found["old"]["commit"] == "0123456789abcdef"
    assert {"date", "host", "load", "versions", "threshold"} <= found.keys()
    assert found["rows"][1]["new_s"] == [1.05]


def test_history_has_costs_under_the_names_of_rays_microbenchmark() -> None:
    (entry,) = tables.history(bench_file({"tasks_sync": [1e-4, 2e-4, 4e-4]})["rows"])
    assert entry["name"] == "single client tasks sync"
    assert entry["unit"] == "µs per task"
    assert entry["value"] == pytest.approx(200)
    assert entry["range"] == "± 150"
    assert set(tables.ONE) == {case.unit for case in run.CASES.values()}


# -- the command line --------------------------------------------------------------


def test_the_help_names_the_cases() -> None:
    assert measure_commands.CASES == run.NAMES
    assert run.KNOWN[len(run.NAMES) :] == measure_commands.LARGE
    assert measure_commands.GATED == gate.SUBJECTS
    assert set(gate.SUBJECTS) <= set(gate.KNOWN)
    assert measure_commands.ALONE_ROUNDS == ROUNDS_MIN
