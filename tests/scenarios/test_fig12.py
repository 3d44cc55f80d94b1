"""Figures 12a and 12b: sums are right in both worlds, delays show, checks can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import fig12a, fig12b
from raytwin.scenarios.peers import PeerError, mpi, times_alone
from raytwin.scenarios.workloads import ring_allreduce
from raytwin.scenarios.workloads.ring_allreduce import Passes, RealVector, Ring, numbers, sums
from tests.requirements import require

MB = 1_000_000
PASSES = Passes(add_s=4e-6, copy_s=4e-6)


def settings(module: Any, **changed: Any) -> dict[str, Any]:
    return {**module.SCENARIO.settings("quick", {}), **changed}


def times(outcome: Outcome, *columns: str) -> dict[tuple[Any, ...], float]:
    return {tuple(row[name] for name in columns): row["elapsed_s"] for row in outcome.rows}


@pytest.mark.parametrize("backend", ["sim", "local"])
@pytest.mark.parametrize(("members", "pieces"), [(2, 1), (3, 2), (4, 3)])
def test_every_member_has_the_sum(backend: str, members: int, pieces: int) -> None:
    ray.init(backend=backend, nodes=members, cpus_per_node=1)
    try:
        # Not a multiple of the pieces: they are of different sizes.
        ring = Ring(members, pieces, 100_004, PASSES if backend == "sim" else None)
        assert not ring.right(), "there is no sum yet"
        for _ in range(2):
            assert ring.allreduce() > 0
            assert ring.right()
            assert not ring.right(), "it was forgotten"
        ring.end()
    finally:
        ray.shutdown()


@pytest.mark.parametrize("virtual", [True, False])
def test_one_wrong_number_is_found(virtual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ring_allreduce.Member.add

    def damaged(self: Any, piece: int, arrived: Any, last: bool) -> Any:
        if piece == 1:
            arrived = (arrived[0] + 1, arrived[1]) if virtual else np.array(arrived)
            if not virtual:
                arrived[0] += 1
        return plain(self, piece, arrived, last)

    monkeypatch.setattr(ring_allreduce.Member, "add", damaged)
    ray.init(backend="sim", nodes=3, cpus_per_node=1)
    try:
        ring = Ring(3, 1, 3_000, PASSES if virtual else None)
        ring.allreduce()
        assert not ring.right()
    finally:
        ray.shutdown()


@pytest.mark.parametrize("module", [fig12a, fig12b])
def test_a_sum_on_this_machine_takes_what_one_process_alone_takes(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_s = copy_s = 0.0

    def measured(function: str, *vectors: float) -> list[float]:
        assert function == "passes_s"
        sizes = [
            nbytes / pieces for nbytes, pieces in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        return [each * size for size in sizes for each in (add_s, copy_s)]

    monkeypatch.setattr(times_alone, "measured", measured)
    changed = {"delays_ms": (0.0,)} if module is fig12b else {"pieces": (1,), "bytes": (MB,)}
    request = Request(
        "sim", nodes=(3,), settings=settings(module, **changed), profile=Path("paper")
    )
    without = module.run(request).rows
    add_s, copy_s = 30e-9, 70e-9
    on_host = settings(module)
    if module is fig12a:
        assert fig12a._passes(on_host, (2,))[2, 1, MB] == Passes(add_s * MB / 2, copy_s * MB / 2)
    else:
        nbytes = on_host["bytes_on_host"] / 4
        assert fig12b._passes_on_host(on_host) == Passes(add_s * nbytes, copy_s * nbytes)
    for before, after in zip(without, module.run(request).rows, strict=True):
        # All three members add twice and copy twice, at the same time.
        more_s = (
            2 * (add_s + copy_s) * after["bytes"] / 3 if after["series"] == module.HOST else 0.0
        )
        longer_s = after["elapsed_s"] - before["elapsed_s"]
        assert longer_s == pytest.approx(more_s, rel=0.02, abs=0.002)


def test_sums_are_exact_for_as_many_members_as_are_said_to_be() -> None:
    count = 1_000
    added = np.zeros(count, np.float32)
    for member in range(300):
        added += numbers(member, count)
    assert np.array_equal(added, sums(300, count))
    vector = RealVector(0, 1, 1, 4_000)
    assert vector.own(0).nbytes == 4_000


def test_the_paper_s_cluster_in_virtual_time() -> None:
    small = settings(fig12a, bytes=(MB, 100 * MB))
    outcome = fig12a.run(Request("sim", nodes=(8,), settings=small))
    assert all(check.ok for check in outcome.checks), outcome.checks
    found = times(outcome, "bytes", "chunks")
    assert found[100 * MB, "chunks in 2"] < found[100 * MB, "whole chunks"]
    assert found[MB, "whole chunks"] < found[100 * MB, "whole chunks"]
    again = fig12a.run(Request("sim", nodes=(8,), settings=small))
    assert again.rows == outcome.rows
    assert not any("published" in finding for finding in outcome.findings), "8 nodes are not 16"


def test_a_ring_that_leaves_the_network_idle_fails_its_check() -> None:
    outcome = Outcome(rows=[])
    row = fig12a._row(fig12a.PAPER, fig12a.OURS, 16, 0, fig12a.WHOLE)
    outcome.rows.append({**row, "bytes": 1000 * MB, "elapsed_s": 1.3, "right": True})
    fig12a._judge_paper(outcome, 16)
    assert [check.ok for check in outcome.checks] == [False]
    assert outcome.metrics["error_percent_1000_mb_whole_chunks"] == pytest.approx(8.33, abs=0.01)


def test_wrong_sums_of_any_system_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"bytes": 4_000, "elapsed_s": 0.1, "right": False}]

    monkeypatch.setattr(mpi, "missing", str)
    monkeypatch.setattr(mpi, "run", ran)
    small = settings(fig12a, bytes_on_host=(4_000,), repeats=1, iterations=1, pieces=(1,))
    outcome = fig12a.run(Request("local", nodes=(2,), settings=small))
    assert [check.ok for check in outcome.checks] == [False]
    assert outcome.checks[0].detail == "1 of 2 allreduces are wrong"


def test_without_mpi_the_rows_are_missing_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi, "missing", lambda: "MPI is not measured: no mpi4py")
    small = settings(fig12a, bytes_on_host=(4_000,), repeats=1, iterations=1, pieces=(1,))
    outcome = fig12a.run(Request("local", nodes=(2,), settings=small))
    assert {row["system"] for row in outcome.rows} == {"actors"}
    assert "MPI is not measured: no mpi4py." in outcome.findings
    assert not any("mpi" in name for name in outcome.metrics)


@pytest.mark.slow
def test_against_mpi_in_one_run() -> None:
    require("mpi", not mpi.missing(), mpi.missing())
    both = settings(
        fig12a, bytes_on_host=(40_000, MB), mpi=("tcp", "shared-memory"), repeats=2, iterations=2
    )
    outcome = fig12a.run(Request("local", nodes=(2,), settings=both))
    assert all(check.ok for check in outcome.checks), outcome.checks
    systems = [row["system"] for row in outcome.rows]
    assert systems.count("mpi") == systems.count("mpi, shared memory") == 8
    assert systems.count("actors") == 16
    # In turn: the first repeat of MPI is over before the second of ours begins.
    assert [row["repeat"] for row in outcome.rows] == sorted(row["repeat"] for row in outcome.rows)
    assert outcome.metrics["times_faster_than_mpi_1_mb_on_2_nodes"] > 0


def test_a_peer_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: Any, **__: Any) -> None:
        raise PeerError("MPI: it failed")

    monkeypatch.setattr(mpi, "missing", str)
    monkeypatch.setattr(mpi, "run", failed)
    small = settings(fig12a, bytes_on_host=(4_000,), repeats=1, iterations=1, pieces=(1,))
    with pytest.raises(PeerError, match="it failed"):
        fig12a.run(Request("local", nodes=(2,), settings=small))
    assert not ray.is_initialized()


def test_each_round_waits_for_the_scheduler_in_virtual_time() -> None:
    outcome = fig12b.run(Request("sim", nodes=(4,), settings=settings(fig12b)))
    assert all(check.ok for check in outcome.checks), outcome.checks
    found = times(outcome, "delay_ms")
    for delay_ms in (1.0, 5.0, 10.0):
        more_s = found[delay_ms,] - found[0.0,]
        assert more_s == pytest.approx(7 * delay_ms / 1e3, rel=0.05)


@pytest.mark.slow
def test_each_round_waits_for_the_scheduler_on_real_processes() -> None:
    small = settings(fig12b, delays_ms=(0.0, 50.0), bytes_on_host=40_000, repeats=1)
    outcome = fig12b.run(Request("local", nodes=(3,), settings=small))
    assert all(check.ok for check in outcome.checks), outcome.checks
    found = times(outcome, "delay_ms")
    assert found[0.0,] < found[50.0,]


@pytest.mark.parametrize(
    ("row", "failing"),
    [
        ({}, []),
        ({"right": False}, ["every member has the sum of all"]),
        ({"elapsed_s": 0.15}, ["every round waits for the delay", "a few ms nearly double"]),
        ({"elapsed_s": 0.2}, ["a few ms nearly double the time"]),
    ],
)
def test_checks_of_the_delay_fail(row: dict[str, Any], failing: list[str]) -> None:
    plain = {"series": fig12b.PAPER, "nodes": 16, "bytes": fig12b.PAPER_BYTES, "rounds": 31}
    plain |= {"right": True, "repeat": 0}
    outcome = Outcome(
        rows=[
            {**plain, "delay_ms": 0.0, "elapsed_s": 0.12},
            {**plain, "delay_ms": 5.0, "elapsed_s": 0.28, **row},
        ]
    )
    fig12b._judge(outcome)
    failed = [check.name for check in outcome.checks if not check.ok]
    assert len(failed) == len(failing)
    assert all(name.startswith(start) for name, start in zip(failed, failing, strict=True))


@pytest.mark.parametrize("module", [fig12a, fig12b])
def test_a_ring_of_one_is_refused(module: Any) -> None:
    with pytest.raises(UsageError, match="at least 2 nodes"):
        module.run(Request("sim", nodes=(1,), settings=settings(module)))
