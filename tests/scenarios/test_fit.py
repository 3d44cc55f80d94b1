"""Calibration: figures are found again from what a cluster with these figures has used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import raytwin as ray
from raytwin.scenarios.measure import fit
from raytwin.scenarios.workloads.calibration_loads import LOADS
from raytwin.simulator.machine.costs import Profile

MACHINE = {
    "name": "a machine",
    "source": "this test",
    "cores": 2,
    "latency_s": 5e-6,
    "bandwidth": 1e9,
    "loopback_latency_s": 5e-6,
    "loopback_bandwidth": 1e9,
    "memory_bandwidth": 1e10,
    "start_worker_s": 0.02,
}
FIGURES = {
    "node": {"turn": 3e-5, "range": 5e-6, "element": 1e-8, "put_range": 2e-6},
    "driver": {"turn": 5e-5, "element": 1e-8, "get": 3e-6, "put": 8e-6, "wait": 1.2e-5},
    "worker": {"turn": 4e-5, "run": 4e-6, "task": 2e-7},
}
SUBMIT_S = 5e-6


def made(hop_s: float, after: float) -> dict[str, Any]:
    """Return the profile of a machine whose figures are known."""
    return fit._profile(MACHINE, {"single": {"call": SUBMIT_S}}, FIGURES, hop_s, after)


def measured(profile: dict[str, Any]) -> dict[str, fit.Load]:
    """Return what a calibration of a machine with this profile would measure."""
    _, walls = fit.simulate(profile)
    loads: dict[str, fit.Load] = {}
    for name, each in busy(profile).items():
        loads[name] = {**each, "wall": walls[name], "call": SUBMIT_S if name == "single" else 0.0}
    return loads


def busy(profile: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return CPU seconds per operation, by load and role, as simulated processes count them."""
    found = {}
    session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=profile_file(profile))
    try:
        for run in LOADS.values():
            run()
        for name, run in LOADS.items():
            before = by_role(session.cluster)
            operations, _ = run()
            after = by_role(session.cluster)
            found[name] = {role: (after[role] - before[role]) / operations for role in after}
    finally:
        ray.shutdown()
    return found


def by_role(cluster: Any) -> dict[str, float]:
    used: dict[str, float] = dict.fromkeys(("head", "node", "worker", "driver"), 0.0)
    for process in set(cluster.processes.values()):
        # What a program has used and not paid for yet belongs to the load that is over.
        used[process.name.partition(":")[0]] += process.busy_s + process.debt_s
    return used


_directory: list[Path] = []


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> None:
    _directory[:] = [tmp_path]


def profile_file(profile: dict[str, Any]) -> str:
    path = _directory[0] / "profile.json"
    path.write_bytes(msgspec.json.encode(msgspec.convert(profile, Profile)))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(("hop_s", "after"), [(2e-5, 0.0), (5e-6, 0.0), (5e-6, 0.4)])
def test_known_figures_are_found_again(hop_s: float, after: float) -> None:
    truth = made(hop_s, after)
    found = fit.fit(measured(truth), MACHINE)
    for role in ("node", "driver", "worker"):
        assert found[role]["turn_s"] == pytest.approx(truth[role]["turn_s"], rel=0.1), role
    assert found["node"]["received"] == pytest.approx(truth["node"]["received"], rel=0.1)
    assert found["node"]["received_by_type"]["PutObjects"]["range_s"] == pytest.approx(
        FIGURES["node"]["put_range"], rel=0.2
    )
    assert found["call_s"] == pytest.approx(truth["call_s"], rel=0.1)
    assert found["range_s"] == pytest.approx(truth["range_s"], rel=0.1)
    assert found["task_s"] == pytest.approx(truth["task_s"], rel=0.1)
    assert found["loopback_latency_s"] == pytest.approx(hop_s, rel=0.15)
    shares = [found[role]["after_s"] / found[role]["turn_s"] for role in ("node", "driver")]
    assert shares == pytest.approx([after, after], abs=0.05)


@pytest.mark.slow
def test_a_profile_that_was_fitted_predicts_the_loads_it_was_fitted_to() -> None:
    loads = measured(made(1e-5, 0.0))
    _, walls = fit.simulate(fit.fit(loads, MACHINE))
    for name, wall_s in walls.items():
        assert wall_s == pytest.approx(loads[name]["wall"], rel=0.1), name


def test_usage_times_figures_is_the_cpu_time() -> None:
    profile = made(1e-5, 0.0)
    session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=profile_file(profile))
    try:
        LOADS["single"]()
        amounts = fit.count(session.cluster)
        used = by_role(session.cluster)
        LOADS["single"]()
        node, figures = amounts["node"], FIGURES["node"]
        expected_s = sum(figures[name] * node[name] for name in fit.UNKNOWNS["node"])
        assert node["turn"] and node["range"] and node["element"]
        assert by_role(session.cluster)["node"] - used["node"] == pytest.approx(expected_s)
        assert amounts["worker"]["task"] == amounts["worker"]["run"] == 3_000
        assert amounts["driver"]["submit"] == 3_000
    finally:
        ray.shutdown()


def test_figures_are_never_negative() -> None:
    # The second load does more of everything and took less.
    rows = {"a": (1.0, 1.0), "b": (2.0, 3.0)}
    found = fit._solve(("x", "y"), rows, {"a": 2.0, "b": 1.0})
    assert min(found.values()) >= 0
    assert found != {"x": 0.0, "y": 0.0}
