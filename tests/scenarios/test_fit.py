"""Calibration: figures are found again from what a cluster with these figures has used."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest

import raytwin as ray
from raytwin.scenarios.measure import fit
from raytwin.scenarios.workloads.calibration_loads import LOADS
from raytwin.scenarios.workloads.held_out import WORKLOADS
from raytwin.simulator.machine.costs import ROLES, Profile, coldness

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
    "head": {"turn": 4e-5, "cold": 6e-5, "range": 6e-6},
    "node": {
        "turn": 3e-5, "cold": 1e-4, "range": 5e-6, "element": 1e-8, "put_range": 2e-6,
        "run_range": 8e-6, "byte": 1e-9
    },
    "driver": {
        "turn": 5e-5, "cold": 8e-5, "message": 7e-6, "element": 1e-8, "get": 3e-6, "next": 4e-6,
        "put": 8e-6, "wait": 1.2e-5, "watch": 2e-6, "byte": 5e-10
    },
    "worker": {
        "turn": 4e-5, "cold": 3e-5, "run": 4e-6, "task": 2e-7, "load": 3e-6, "input": 5e-6,
        "read": 1e-5, "item": 7e-6, "byte": 1e-9
    },
    "call": {
        "submit": 5e-6, "argument": 8e-6, "argument_byte": 1e-9, "reference": 2e-6, "pickle": 2e-5,
        "frame": 1e-5
    },
}  # fmt: skip


def made(hop_s: float, after: float) -> dict[str, Any]:
    """Return the profile of a machine whose figures are known."""
    return fit._profile(MACHINE, FIGURES, hop_s, after)


def measured(profile: dict[str, Any]) -> fit.Loads:
    """Return what a calibration of a machine with this profile would measure."""
    usage, walls = fit.simulate(profile)
    calls = FIGURES["call"]
    return {
        name: {
            **{role: usage[role][name]["busy"] for role in usage},
            "wall": walls[name],
            "call": 0.0 if name in UNTIMED else sum(
                calls[each] * usage["driver"][name][each] for each in calls
            ),
        }
        for name in LOADS
    }  # fmt: skip


def after_a_rest(role: dict[str, Any]) -> float:
    """Return what a turn costs after a rest of 1 ms."""
    return float(role["turn_s"] + coldness(0.001) * role["cold_s"])


UNTIMED = ("paced", "array", "put", "wait", "items", "read", "far_paced", "turns")
"""Loads that do not time what their calls take."""


_directory: list[Path] = []


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> None:
    _directory[:] = [tmp_path]


def profile_file(profile: dict[str, Any]) -> str:
    path = _directory[0] / "profile.json"
    path.write_bytes(msgspec.json.encode(msgspec.convert(profile, Profile)))
    return str(path)


HELD_OUT = (
    "single_1000", "argument_10kb", "references_2", "fan", "chain", "layered", "nested", "skewed",
    "stream",
)  # fmt: skip
"""Programs that are no loads of the calibration."""


def predicted_s(profile: dict[str, Any]) -> dict[str, float]:
    """Return what an operation of each of `HELD_OUT` takes on this machine."""
    found = {}
    for name in HELD_OUT:
        workload = WORKLOADS[name]
        nodes = workload.nodes
        ray.init(
            backend="sim", nodes=nodes, nodes_per_host=len(nodes), profile=profile_file(profile)
        )
        try:
            run = workload.start()
            run()
            ended = run()
        finally:
            ray.shutdown()
        found[name] = ended.elapsed_s / ended.operations
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("hop_s", "after"), [(2e-5, 0.0), (5e-6, 0.4)])
def test_known_figures_are_found_again(hop_s: float, after: float) -> None:
    truth = made(hop_s, after)
    found = fit.fit([measured(truth)], MACHINE)
    found_s, truth_s = predicted_s(found), predicted_s(truth)
    errors = {name: found_s[name] / truth_s[name] - 1 for name in HELD_OUT}
    assert statistics.median(map(abs, errors.values())) < 0.08, errors
    assert max(map(abs, errors.values())) < 0.4, errors
    assert abs(errors["chain"]) < 0.1, errors  # of turns, hops and what comes after them
    # How messages batch depends on the last digit of the figures. So the loads hardly distinguish
    # turns, rests and ranges of a node; only their sum matters to predictions.
    for role, within in (("head", 0.6), ("node", 0.6), ("driver", 0.1), ("worker", 0.1)):
        assert after_a_rest(found[role]) == pytest.approx(after_a_rest(truth[role]), rel=within)
    put = found["node"]["received_by_type"]["PutObjects"]
    assert put["range_s"] == pytest.approx(FIGURES["node"]["put_range"], rel=0.6)
    for kind in (
        found["node"]["received_by_type"]["TasksDone"],
        found["node"]["sent_by_type"]["RunTasks"],
    ):
        assert kind["range_s"] == pytest.approx(FIGURES["node"]["run_range"], rel=0.6)
    # Each item that a driver takes comes in a message of its own, so only the sum of both costs can
    # be found.
    received, expected = found["driver"]["received"], truth["driver"]["received"]
    item_s = received.pop("message_s") + found["call_s"].pop("next")
    assert item_s == pytest.approx(
        expected.pop("message_s") + truth["call_s"].pop("next"), rel=0.15
    )
    # Results of an array come in 57 to 80 messages, by the last digit again, and a turn for each
    # costs as much as thousands of elements: an element costs between half and 1.3 times what it
    # should. What both take together is found.
    assert received.pop("element_s") == pytest.approx(expected.pop("element_s"), rel=0.9)
    assert abs(found["residuals"]["array driver"]) < 0.25
    assert received == pytest.approx(expected, rel=0.15)
    assert found["worker"]["received"] == pytest.approx(truth["worker"]["received"], rel=0.15)
    # Most loads whose tasks have inputs have one, so loading and an input share an error; and they
    # watch one reference for each task, so a watch shares that of others.
    calls, real = found["call_s"], truth["call_s"]
    loaded_s = calls.pop("load") + calls.pop("input")
    assert loaded_s == pytest.approx(real.pop("load") + real.pop("input"), rel=0.1)
    assert calls.pop("watch") == pytest.approx(real.pop("watch"), rel=0.6)
    assert calls == pytest.approx(real, rel=0.15)
    assert found["range_s"] == pytest.approx(truth["range_s"], rel=0.1)
    assert found["task_s"] == pytest.approx(truth["task_s"], rel=0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_profile_that_was_fitted_predicts_the_loads_it_was_fitted_to() -> None:
    loads = measured(made(1e-5, 0.0))
    _, walls = fit.simulate(fit.fit([loads], MACHINE))
    for name, wall_s in walls.items():
        assert wall_s == pytest.approx(loads[name]["wall"], rel=0.25), name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_profile_says_how_far_its_figures_are_to_be_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "ITERATIONS", 2)
    loads = measured(made(1e-5, 0.0))
    # In the second round the node has used more for each message.
    dearer = {name: {**load, "node": 1.2 * load["node"]} for name, load in loads.items()}
    odd = {**loads, "single": {**loads["single"], "node": 2 * loads["single"]["node"]}}
    found = msgspec.convert(fit.fit([loads, dearer, loads], MACHINE), Profile)

    assert found.loads == [loads, dearer, loads]
    assert all(each.low_s <= each.high_s for each in found.intervals.values())
    assert {name for name in found.residuals if name.endswith(" head")} <= {
        f"{name} head" for name, load in LOADS.items() if len(load.cpus) > 1
    }
    node, driver = (found.intervals[f"{role}.turn"] for role in ("node", "driver"))
    assert node.high_s / node.low_s > 1.1 > driver.high_s / driver.low_s
    assert set(found.left_out) == {name for name in found.residuals if not name.endswith(" wall")}

    one = msgspec.convert(fit.fit([odd], MACHINE), Profile)
    assert not one.intervals
    # All others contradict the load, which has pulled the figures towards itself.
    assert one.left_out["single node"] < -0.3
    assert one.left_out["single node"] < one.residuals["single node"]


def test_rests_count_alike_whether_they_cost_something() -> None:
    counts = []
    for cold_s in (0.0, 1e-12):
        profile = {**made(1e-5, 0.0), "run_queues": True, "busy_rest": 0.1, "cores": 1}
        for role in ROLES:
            profile[role] = {**profile[role], "cold_s": cold_s}
        usage, _ = fit.simulate(profile)
        counts.append({role: usage[role]["paced"]["cold"] for role in ("node", "driver")})
    free, cheap = counts
    assert free == pytest.approx(cheap) and min(free.values()) > 0


def test_usage_times_figures_is_the_cpu_time() -> None:
    usage, _ = fit.simulate(made(1e-5, 0.0))
    for load in ("single", "references", "far"):
        for role, figures in FIGURES.items():
            if role not in usage or (role == "head" and load != "far"):
                continue
            each = usage[role][load]
            expected_s = sum(figures[name] * each[name] for name in figures)
            for name in FIGURES["call"] if role == "driver" else ("pickle", "frame"):
                expected_s += FIGURES["call"][name] * each[name]
            if role == "head":
                expected_s += sum(
                    FIGURES["node"][name] * each[name] for name in ("element", "byte")
                )
            assert expected_s
            assert each["busy"] == pytest.approx(expected_s, rel=0.01), (role, load)
    assert usage["worker"]["single"]["task"] == usage["worker"]["single"]["run"] == 1
    assert usage["driver"]["single"]["submit"] == 1


def test_figures_are_never_negative() -> None:
    # The second load does more of everything and took less.
    rows = {"a": (1.0, 1.0), "b": (2.0, 3.0)}
    found = fit._solve(("x", "y"), rows, {"a": 2.0, "b": 1.0}, {"a": 2.0, "b": 1.0})
    assert min(found.values()) >= 0
    assert found != {"x": 0.0, "y": 0.0}
