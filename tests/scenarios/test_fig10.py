"""Figures 10a and 10b at a small scale, on both backends."""

from __future__ import annotations

import msgspec
import pytest

from raytwin.runtime.control.messages import Snapshot
from raytwin.runtime.session.gcs_client import GcsClient
from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import fig10a, fig10b
from raytwin.scenarios.workloads import chain_writes
from raytwin.simulator.cluster.simulated_replicas import ReplicaCosts
from raytwin.simulator.machine.costs import load_profile


def run_10a(backend: str, member: str) -> Outcome:
    settings = {
        **fig10a.SCENARIO.settings("quick", {}),
        "seconds": 1.0,
        "kill_s": 0.3,
        "member": member,
    }
    return fig10a.run(Request(backend, settings=settings))


@pytest.mark.parametrize("backend", ["sim", "local"])
@pytest.mark.parametrize("member", ["head", "tail"])
def test_no_write_is_lost_when_a_member_is_killed(backend: str, member: str) -> None:
    outcome = run_10a(backend, member)
    read_back = [check for check in outcome.checks if "read back" in check.name]
    assert len(read_back) == 1
    assert read_back[0].ok, read_back[0].detail
    events = {row["event"]: row["time_s"] for row in outcome.rows if row["event"] != "write"}
    assert 0.3 <= events["killed"] < events["joined"]
    kinds = {event["cat"] for event in outcome.timeline}
    assert {"write", "event", "fault"} <= kinds
    writes = [row for row in outcome.rows if row["event"] == "write"]
    assert max(row["latency_ms_max"] for row in writes) == outcome.metrics["latency_ms_max"]


def test_the_simulated_client_is_not_kept_waiting() -> None:
    """In virtual time the published bound is exact: nothing else uses the machine."""
    outcome = run_10a("sim", "both")
    assert all(check.ok for check in outcome.checks), outcome.checks


def test_every_write_is_read_back_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys that were written are asked for, and one that is not there is found out."""
    asked: list[bytes] = []
    real = GcsClient.kv_get

    def forgetful(gcs: GcsClient, key: bytes) -> bytes | None:
        asked.append(key)
        return None if key == chain_writes.key(3) else real(gcs, key)

    monkeypatch.setattr(GcsClient, "kv_get", forgetful)
    monkeypatch.setattr(fig10a, "READ_BACK_MAX", 100, raising=False)
    outcome = run_10a("sim", "tail")
    assert len(asked) == outcome.metrics["writes_tail_killed"] > 100
    check = next(check for check in outcome.checks if "read back" in check.name)
    assert not check.ok
    assert check.detail.endswith(", 1 wrong")


def test_a_kill_after_the_end_is_refused() -> None:
    settings = {**fig10a.SCENARIO.settings("quick", {}), "seconds": 1.0, "kill_s": 1.0}
    with pytest.raises(UsageError, match="kill_s"):
        fig10a.run(Request("sim", settings=settings))


def test_the_state_of_a_new_member_is_charged_for() -> None:
    """Memory a thousand times slower: whoever joins is later by about as much."""
    profile = load_profile("paper")
    quick = ReplicaCosts(profile)
    slow = ReplicaCosts(msgspec.structs.replace(profile, memory_bandwidth=8e6))
    state = [Snapshot(1, 9, b"x" * 2_000_000)]
    assert slow.sent(state)[0] - quick.sent(state)[0] == pytest.approx(0.25, rel=0.01)
    assert slow.received(state) - quick.received(state) == pytest.approx(0.25, rel=0.01)


def test_simulated_memory_is_flat_with_flushing_and_grows_without() -> None:
    settings = {
        **fig10b.SCENARIO.settings("quick", {}),
        "tasks": 20_000,
        "memory_max": 400_000,
    }
    outcome = fig10b.run(Request("sim", settings=settings))
    assert all(check.ok for check in outcome.checks), outcome.checks
    assert outcome.metrics["memory_mb_with_flushing"] <= 0.4
    # Linear: a row for every task.
    assert any(event["ph"] == "X" for event in outcome.timeline)
    rows = [row for row in outcome.rows if row["series"] == "without flushing"]
    early, late = rows[len(rows) // 2 - 1], rows[-1]
    assert late["tasks"] / early["tasks"] == pytest.approx(2, rel=0.1)
    assert late["memory_mb"] / early["memory_mb"] == pytest.approx(
        late["tasks"] / early["tasks"], rel=0.1
    )


@pytest.mark.parametrize(("growth", "ok"), [(0.0, True), (0.09, True), (0.15, False)])
def test_memory_that_grows_steadily_is_not_flat(growth: float, ok: bool) -> None:
    """From the first sample that counts to the last; before, it grows as it may."""
    early = [(at, 2e5 * at) for at in range(200)]
    late = [(200 + at, 40e6 * (1 + growth * at / 300)) for at in range(301)]
    assert fig10b._flat(early + late, 200, fig10b.HOST).ok is ok


def test_memory_that_rises_and_falls_is_flat() -> None:
    saw = [(at, 2e6 + 1e4 * (at % 200)) for at in range(1000)]
    assert fig10b._flat(saw, 400, fig10b.HOST).ok, "judged where it happens to be low"


def test_flushed_rows_are_found_on_real_processes() -> None:
    settings = {
        **fig10b.SCENARIO.settings("quick", {}),
        "tasks": 6_000,
        "memory_max": 200_000,
    }
    outcome = fig10b.run(Request("local", settings=settings))
    found = [check for check in outcome.checks if "found on disk" in check.name]
    assert found[0].ok, found
    assert found[0].detail == "empty, submitted by driver:0.0, ended on node 0"
    assert outcome.metrics["disk_mb_with_flushing"] > 0
    assert {row["series"] for row in outcome.rows} == {"with flushing", "without flushing"}


@pytest.mark.parametrize(("long", "ok"), [(1, True), (2, False)])
def test_a_snapshot_in_memory_at_one_look_is_no_growth(long: int, ok: bool) -> None:
    sizes = [50.0] * 6 + [70.0] * long + [50.0] * 3
    samples = [(100 * (index + 1), nbytes) for index, nbytes in enumerate(sizes)]
    assert fig10b._flat(samples, 400, fig10b.HOST).ok is ok
