"""`raytwin replay --component`: a component of a real cluster, replayed from its journal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raytwin.runtime.journal import FORMAT, MAGIC, Journal, JournalReader
from tests.scenarios.test_cli import complaint, raytwin

SCRIPT = """
import ray

@ray.remote
def add(x, y):
    return x + y

print(ray.get([add.remote(each, 1) for each in range(20)])[-1])
"""


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of journals that `raytwin exec --journal` has written."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "script.py").write_text(SCRIPT)
    command = ["exec", "--nodes", "2", "--cpus-per-node", "1", "--journal", "journals", "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", *command], cwd=folder, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "20\n"
    return folder / "journals"


def rewritten(journal: Path, copy: Path, number: int, **changes: Any) -> Path:
    """Write a copy of a journal in which one turn has changed."""
    reader = JournalReader(journal)
    with copy.open("xb", buffering=0) as file:
        written = Journal(file, reader.origin)
        for at, turn in enumerate(reader):
            new = msgspec.structs.replace(turn, **(changes if at == number else {}))
            written.write(list(msgspec.structs.astuple(new)))
    return copy


def test_every_component_agrees(journals: Path) -> None:
    files = sorted(journals.iterdir())
    assert {path.stem for path in files} == {"gcs", "global", "health", "node-0", "node-1"}
    for path in files:
        result = raytwin("replay", "--component", path)
        turns = JournalReader(path).turns
        assert result.exit_code == 0, result.output
        assert f": {turns} turns replayed, all outputs agree" in result.stdout


def test_until_ends_with_a_turn(journals: Path) -> None:
    path = journals / "node-0.journal"
    result = raytwin("replay", "--component", path, "--until", 3)
    assert result.exit_code == 0
    of = JournalReader(path).turns
    assert result.stdout == f"node:0: 4 of {of} turns replayed, all outputs agree\n"


def test_the_first_turn_that_differs_is_shown(journals: Path, tmp_path: Path) -> None:
    turns = list(JournalReader(journals / "node-0.journal"))
    number, turn = next(
        (number, turn)
        for number, turn in enumerate(turns)
        if number and turn.inputs and turn.outputs
    )
    to = turn.outputs[0][0]
    copy = rewritten(journals / "node-0.journal", tmp_path / "copy", number, outputs=[])
    result = raytwin("replay", "--component", copy)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    after_s = turn.now_s - turns[0].now_s
    assert (
        lines[0]
        == f"node:0: turn {number} of {len(turns)} differs, {after_s:.6f} s after its start"
    )
    assert lines[1].startswith(f"  input from {turn.inputs[0][0]}: ")
    assert "  expected: nothing" in lines
    assert any(line.startswith(f"  actual: to {to}: ") for line in lines)
    assert lines[-1].endswith(f"raytwin replay --component {copy} --break {number}")


def test_an_error_of_the_component_is_shown(journals: Path, tmp_path: Path) -> None:
    copy = rewritten(journals / "health.journal", tmp_path / "copy", 1, timer=99)
    result = raytwin("replay", "--component", copy)
    assert result.exit_code == 1
    assert "actual: it raises TimerUnset('timer 99 fired, and it is not set')" in result.stdout


def test_break_stops_before_the_turn_with_the_component_at_hand(journals: Path) -> None:
    path = journals / "node-0.journal"
    of = JournalReader(path).turns

    def debugged(commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "raytwin", "replay", "--component", path, "--break", "1"],
            check=False, input=commands, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    went_on = debugged("p type(component).__name__, turn.now_s\nc\n")
    now_s = list(JournalReader(path))[1].now_s
    assert f"('NodeManager', {now_s!r})" in went_on.stdout
    assert f"node:0: {of} turns replayed, all outputs agree" in went_on.stdout
    assert went_on.returncode == 0
    left = debugged("q\n")
    assert left.returncode == 130
    assert left.stderr.splitlines()[-1] == "raytwin: the debugger was left in turn 1"


def test_a_journal_that_is_cut_off_is_replayed_as_far_as_it_goes(
    journals: Path, tmp_path: Path
) -> None:
    whole = (journals / "node-0.journal").read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-1])
    result = raytwin("replay", "--component", cut)
    turns = JournalReader(journals / "node-0.journal").turns - 1
    assert result.exit_code == 0
    agree, line = result.stdout.splitlines()
    assert agree == f"node:0: {turns} turns replayed, all outputs agree"
    assert line.startswith(f"{cut} is cut off: of turn {turns} it has ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read FILE: No such file or directory"),
        (b"", "FILE is no journal"),
        (b"x" * 100, "FILE is no journal"),
        (MAGIC[:9], "FILE is cut off before its first turn"),
        (MAGIC + b"%d\n" % FORMAT, "FILE is cut off before its first turn"),
        (MAGIC + b"%d\n" % (FORMAT + 1), f"a journal of format {FORMAT + 1}, and this version"),
        (MAGIC + b"%d\n\0\0\0\1\xc1" % FORMAT, "the head of FILE cannot be read"),
        (
            MAGIC + b"%d\n\0\0\0\6\x92\xa30.0\xc0" % FORMAT,
            "FILE was written by raytwin 0.0, and this is",
        ),
    ],
)
def test_what_is_no_journal_is_refused(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    assert said.replace("FILE", str(file)) in complaint(raytwin("replay", "--component", file))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--until", 1_000_000], "--until 1000000: the last turn of "),
        (["--break", 1_000_000], "--break 1000000: the last turn of "),
        (["--break", 0], "--break"),
        (["--until", 1, "--break", 2], "--break 2 is after --until 1"),
        (["--trace"], "--backend and --trace are of a case"),
    ],
)
def test_options_that_cannot_be_are_refused(
    options: list[object], said: str, journals: Path
) -> None:
    path = journals / "node-0.journal"
    assert said in complaint(raytwin("replay", "--component", path, *options))


def test_until_and_break_need_a_component(tmp_path: Path) -> None:
    assert "give --component" in complaint(raytwin("replay", tmp_path / "case.json", "--break", 1))


def test_the_journal_of_a_simulation_is_refused(tmp_path: Path) -> None:
    Journal.of_simulation(tmp_path / "journal").close()
    said = complaint(raytwin("replay", "--component", tmp_path / "journal"))
    assert "the journal of a simulation, of several components" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "sim", "--journal", "d"], "--journal is of real processes"),
        (["--journal", "script.py"], "script.py is not a directory to write to"),
        (["--journal", "d", "--address", "auto"], "--journal cannot be chosen when joining"),
    ],
)
def test_exec_writes_no_journal_where_there_can_be_none(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    assert said in complaint(raytwin("exec", *options, "script.py"))
