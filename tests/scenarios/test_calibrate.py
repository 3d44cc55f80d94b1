"""The figures of a machine that a calibration measures by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import psutil
import pytest

import raytwin as ray
from raytwin.runtime.processes.node.spiller import SpillFile
from raytwin.scenarios.core.scenario import Silent
from raytwin.scenarios.measure import calibrate
from raytwin.simulator.machine.costs import ROLES, Profile

BY_FIT = {
    *ROLES,
    "source",
    "call_s",
    "range_s",
    "task_s",
    "residuals",
    "left_out",
    "intervals",
    "spread",
}
"""Fields of a profile that `fit.fit` adds to a machine's figures, or replaces."""
OF_ROUNDS = {"loads", "speed"}


class _Disk:
    """Stands in for a spill file: a clock on which each round's bytes take their time."""

    def __init__(self, rounds_s: list[tuple[float, float]]) -> None:
        self.now_s = 0.0
        self.free_places = 0
        self._rounds_s = iter(rounds_s)
        self._read_s = 0.0

    def open(self, descriptor: int) -> _Disk:
        os.fstat(descriptor)
        return self

    def write(self, data: memoryview) -> int:
        assert data.nbytes == calibrate.SPILL_BYTES
        write_s, self._read_s = next(self._rounds_s)
        self.now_s += write_s
        return 4096

    def read(self, place: int, into: memoryview) -> None:
        assert (place, into.nbytes) == (4096, calibrate.SPILL_BYTES)
        self.now_s += self._read_s

    def free(self, place: int) -> None:
        self.free_places += 1
        self.now_s += 100.0  # a node does not wait for it


def test_the_disk_has_the_median_rate_of_writing_an_object_and_reading_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = _Disk([(9.0, 1.0), (1.0, 1.0), (3.0, 1.0), (1.0, 2.0), (50.0, 50.0)])
    monkeypatch.setattr(calibrate, "SpillFile", disk.open)
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: disk.now_s)
    assert calibrate._measure_disk() == 2 * calibrate.SPILL_BYTES / 4.0
    assert disk.free_places == calibrate.ROUNDS


def test_the_file_of_the_measurement_is_gone_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def spill_file(descriptor: int) -> SpillFile:
        opened.append(descriptor)
        return SpillFile(descriptor)

    monkeypatch.setattr(calibrate, "SpillFile", spill_file)
    assert calibrate._measure_disk() > 0
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert len(opened) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_measurement_of_rests_leaves_no_process_and_no_pinned_core(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def broken() -> float:
        raise RuntimeError("broken")

    monkeypatch.setattr(calibrate, "RESTS", 5)
    if fails:
        monkeypatch.setattr(calibrate, "_warm_s", broken)
    cores, children = os.sched_getaffinity(0), set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="broken") if fails else nullcontext():
        calibrate._measure_busy_rest()
    assert os.sched_getaffinity(0) == cores
    assert set(psutil.Process().children()) <= children


def test_a_calibrated_profile_takes_no_cost_from_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(value: Any) -> Callable[..., Any]:
        return lambda *given: value

    ones = ("hop", "start_worker", "warm_up", "blob", "touch", "busy_rest", "commit")
    for name in ones:
        monkeypatch.setattr(calibrate, f"_measure_{name}", constant(0.5))
    monkeypatch.setattr(calibrate, "_measure_transfers", constant((1e9, 1e9, 1e-9)))
    processes = dict.fromkeys(("end_process_s", "end_node_s", "start_node_s"), 0.001)
    monkeypatch.setattr(calibrate, "_measure_processes", constant(processes))
    puts = {"put_split_s": 0.0, "put_thread_s": 0.0}
    monkeypatch.setattr(calibrate, "_measure_puts", constant(puts))
    monkeypatch.setattr(
        calibrate, "_copies_s", lambda _, threads, **_places: dict.fromkeys(threads, 0.5)
    )
    monkeypatch.setattr(calibrate, "_measure_disk", constant(3e9))
    steps: list[float] = []

    class Counted(Silent):
        def advance(self, amount: float = 1.0) -> None:
            steps.append(amount)

    found = calibrate.measure_machine(Counted())
    assert found["disk_bandwidth"] == 3e9
    assert sum(steps) == calibrate.MACHINE_STEPS
    fields = {each.name for each in msgspec.structs.fields(Profile)}
    # Bodies take as long as where they are measured: on this machine.
    assert fields - set(found) == BY_FIT | OF_ROUNDS | {"body_scale"}


def test_ends_and_starts_of_processes_are_measured_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "CLUSTERS", 1)
    found = calibrate._measure_processes()
    assert found.keys() == {"end_process_s", "end_node_s", "start_node_s"}
    assert min(found.values()) > 0


def test_an_event_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        def query(self, kind: str) -> list[Any]:
            return [(0.0, "node_added")]  # before the moment that is asked for

    monkeypatch.setattr(calibrate, "LOG_TIMEOUT_S", 0.1)
    with (
        ray.init(backend="sim", nodes=1),
        pytest.raises(RuntimeError, match="logged no node_added within"),
    ):
        calibrate._logged_s(Quiet(), "node_added", ray.now())
