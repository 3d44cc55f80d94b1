"""Figures 11a and 11b report as many executions as the bodies of tasks and calls count."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.core.ids import task_id
from raytwin.scenarios.core import executions
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.figures import fig11a, fig11b
from raytwin.scenarios.workloads import chains, moving_actors

BACKENDS = pytest.mark.parametrize("backend", ["sim", "local"])


def counter(path: Path) -> Callable[[], None]:
    """Return what writes the ID of the task or call that it is called in, a line each time."""
    name = str(path)

    def count() -> None:
        line = f"{ray.get_runtime_context().get_task_id()}\n"
        file = os.open(name, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, line.encode())
        os.close(file)

    return count


def total(rows: list[Any], *columns: str) -> int:
    return sum(row[column] for row in rows for column in columns)


@BACKENDS
def test_links_that_began_are_counted_and_not_those_that_were_placed(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, count = chains._link, counter(tmp_path / "ran")

    def link(state: Any, key: int, *rest: Any) -> Any:
        if key:  # those with 0 come before the clock starts
            count()
        return body(state, key, *rest)

    remote = ray.remote(link)
    for module in (chains, fig11a):
        monkeypatch.setattr(module, "link", remote)
    small = {"time_factor": 0.02, "task_ms": 20.0, "bucket_s": 0.1, "chains_per_cpu": 2}
    settings = {**fig11a.SCENARIO.settings("quick", {}), **small}
    outcome = fig11a.run(Request(backend, settings=settings))
    ran = (tmp_path / "ran").read_text().splitlines()
    links = outcome.metrics["links"]
    assert total(outcome.rows, "tasks_first") == len(set(ran)) == links
    # A node with one CPU may be killed when a link has counted itself here, and not there.
    unsure = 0 if backend == "sim" else len(fig11a.REMOVED_S)
    assert 0 <= len(ran) - links - total(outcome.rows, "tasks_again") <= unsure
    if backend == "sim":
        placed = sum(outcome.metrics[f"placed_again_{why}"] for why in ("not_ended", "value_lost"))
        assert 0 < len(ran) - links < placed, "some had not begun, and were placed again"


@BACKENDS
def test_calls_that_began_are_counted(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = counter(tmp_path / "ran")

    class Stepper(moving_actors.Stepper):
        def step(self, busy_s: float) -> Any:
            count()
            return super().step(busy_s)

    monkeypatch.setattr(moving_actors, "Stepper", Stepper)
    # Calls take longer than the time between two: when nodes die each actor is in one.
    settings = {
        "actors": 10, "steps": 8, "kill_step": 5, "period_s": 0.3, "method_s": 0.4,
        "checkpoint_interval": 2,
    }  # fmt: skip
    outcome = fig11b.run(Request(backend, settings=settings))
    ran = (tmp_path / "ran").read_text().splitlines()
    # Two runs, with and without checkpoints, whose IDs are the same on `sim`.
    assert total(outcome.rows, "first_executions") == 2 * 80
    columns = ("first_executions", "re_executions", "replays")
    # On `local` an actor may be killed when a call has counted itself here, and not there.
    unsure = 0 if backend == "sim" else 2 * 2
    assert 0 <= len(ran) - total(outcome.rows, *columns) <= unsure
    assert (
        total(outcome.rows, "re_executions")
        == outcome.metrics["re_executions_with_checkpoints"]
        + (outcome.metrics["re_executions_without_checkpoints"])
    )
    if backend == "sim":
        # The nodes die at 1.5 s: two actors have done three calls and are in the fourth.
        found = {
            policy: [total([r for r in outcome.rows if r["policy"] == policy], c) for c in columns]
            for policy in (fig11b.WITH, fig11b.WITHOUT)
        }
        assert found == {fig11b.WITH: [80, 2, 2], fig11b.WITHOUT: [80, 2, 6]}


def test_a_file_and_a_timeline_say_which_is_which(tmp_path: Path) -> None:
    one, other = (bytes([number]) * 12 for number in (1, 2))
    lines = [(one, "3.7"), (other, "3.7"), (one, "4.2"), (one, "4.9"), (other, "4.9")]
    file = tmp_path / "ran"
    file.write_text(
        "".join(
            f"{task_id(array, 0).hex()} worker:{worker} {at_s}.5\n"
            for at_s, (array, worker) in enumerate(lines)
        )
    )
    timeline = [
        ["f", node, number, 0.0, 1.0, 1, array, 0, attempt, kind, 0, 0.0, []]
        for node, number, array, attempt, kind in (
            (3, 7, one, 0, "call"), (4, 9, one, 2, "replay"), (4, 9, other, 2, "call"),
        )
    ]  # fmt: skip
    found = executions.read(str(file), timeline)
    assert [each.began_s for each in found.first] == [0.5, 1.5]
    assert [each.began_s for each in found.again] == [2.5, 4.5]
    assert [(each.worker, each.began_s) for each in found.replays] == [("worker:4.9", 3.5)]


def test_paths_of_records_have_one_length_wherever_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = set()
    for folder in (tmp_path / "a", tmp_path / "a longer name"):
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with executions.record() as path:
            assert Path(path).is_file() and path.startswith(str(folder))
            lengths.add(len(path))
    assert len(lengths) == 1
