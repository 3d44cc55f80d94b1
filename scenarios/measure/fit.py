"""From CPU times that were measured to the figures of a profile that explain them.

A role's CPU time is linear in the amounts of turns, ranges, bytes, calls, ... that a load causes,
and these depend on how messages batch, so on the figures. Hence: simulate the same load with the
figures so far, count, solve for better figures (non-negative least squares of the relative errors),
and again; the figures that explain the loads best are kept. A role has as many `UNKNOWNS` as the
loads can distinguish. What submitting calls cost is measured by itself (`CALLS`), and what the
simulation charges besides, as copies into the store, is known.

Then the way of one task: CPU time is not all of it, since messages take time to wake a reader, and
not all CPU time is in it, since a process that has sent keeps books while the reader is at work
(`after_s`). The time of a hop is measured on bare processes. How long one task at a time takes on
the real runtime gives the rest: the part of turns that comes after what they send, or more time for
a hop if there is none.

Three things in the profile tell how far to trust its figures. A residual is the error of a load
that the figures explain. The error of a load that is left out comes from figures that were fitted
to all other loads. The interval of a figure comes from the rounds of loads, drawn anew with
replacement (bootstrap). For the last two the fit does not simulate again: messages batch as they
did.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import nnls

import raytwin as ray
from raytwin.runtime.control.messages import PutObjects, RunTasks, TasksDone
from raytwin.scenarios.workloads.calibration_loads import LOADS, by_cluster
from raytwin.simulator.machine.costs import ROLES, CostModel, Profile, size_of

Load = dict[str, float]
"""Seconds per operation: CPU by role, ``wall``, and ``call`` (within submitting calls)."""
Loads = dict[str, Load]
"""The loads that one round has measured, by name."""

HOPS = 3
"""Messages from a driver's submission of a short task until the driver has its result."""
ITERATIONS = 14
"""Of simulating and solving: where the figures are known, more bring them hardly closer."""
RESAMPLES = 200
INTERVAL = (0.025, 0.975)
MEASURABLE = 0.02
"""A role that uses less than this part of a load's time is not judged by it."""
LEAST_S = 1e-8
"""A difference of two noisy figures is never taken to be less."""
AFTER_MAX = 0.9
"""Of a turn: to be woken and to send comes before."""
UNKNOWNS = {
    "head": ("turn", "cold", "range"),
    "node": ("turn", "cold", "range", "element", "put_range", "run_range", "byte"),
    "driver": (
        "turn",
        "cold",
        "message",
        "element",
        "get",
        "next",
        "put",
        "wait",
        "watch",
        "byte",
    ),
    "worker": ("turn", "cold", "run", "task", "load", "input", "read", "item", "byte"),
}
"""By role: its costs. A ``run`` is a range that a worker runs; a ``load`` is of a task's arguments.
A ``run_range`` is one in a message to or from that worker: a node does more for it than to forward
it. ``cold`` is a code path after a rest, by how cold that makes it (`CostModel.coldness`); a
``read`` is a value that a worker, or a driver, takes out of the object store. The head's elements
and bytes cost what a node's do."""
CALLS = ("submit", "argument", "argument_byte", "reference", "pickle", "frame")
"""The costs of a submitting call: see `Profile.call_s`. A ``pickle``, and a ``frame`` that leaves
(a system call, which wakes its reader), cost workers and schedulers what they cost a driver."""

Amounts = Counter[str]
"""How often a role did each thing that costs CPU time."""


def fit(rounds: Sequence[Loads], machine: dict[str, Any]) -> dict[str, Any]:
    """Return a profile: the fields of `machine`, and the roles' figures.

    The medians of `rounds` are explained. `machine` has the other fields of `costs.Profile`,
    ``loopback_latency_s`` being the least that a hop takes. Raises RuntimeError if a cluster is
    connected.
    """
    loads = medians(rounds)
    hop_s = machine["loopback_latency_s"]
    after = 0.0
    figures = _first_guess(loads)
    best: Any = None
    least = math.inf
    for number in range(ITERATIONS):
        profile = _profile(machine, figures, hop_s, after)
        usage, walls = simulate(profile)
        found = residuals(loads, usage, walls)
        error = statistics.fmean(map(abs, found.values()))
        # How messages batch may hang on little, and figures go to and fro: the best are kept.
        if error < least:
            best, least = (profile, found, usage, figures), error
        if number == ITERATIONS - 1:
            break
        solved = _solved(loads, usage, figures)
        if number:  # half the way: from the second on what is solved overshoots
            solved = {
                role: {name: (figures[role][name] + each) / 2 for name, each in found.items()}
                for role, found in solved.items()
            }
        figures = solved
        # Driver, node, worker, driver: the result does not wait for the node.
        on_the_way = sum(figures[role]["turn"] for role in ("driver", "node", "worker"))
        # How much sooner the task has to be back than it was with the last figures.
        early_s = walls["sync"] - loads["sync"]["wall"]
        hops_s = hop_s - machine["loopback_latency_s"]
        wanted_s = after * on_the_way - HOPS * hops_s + early_s
        after = min(AFTER_MAX, max(0.0, wanted_s) / max(LEAST_S, on_the_way))
        hop_s = machine["loopback_latency_s"] + max(0.0, -wanted_s) / HOPS
    profile, found, usage, figures = best
    return {
        **profile,
        "spread": round(spread(rounds), 3),
        "loads": list(rounds),
        "residuals": found,
        "left_out": _left_out(loads, usage, figures),
        "intervals": _intervals(rounds, usage, figures),
    }


def medians(rounds: Sequence[Loads]) -> Loads:
    """Return each load with the medians of its rounds."""
    return {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in load}
        for name, load in rounds[0].items()
    }


def spread(rounds: Sequence[Loads]) -> float:
    """Return how many times as long the loads of the slowest round took as those of the fastest."""
    took_s = [statistics.geometric_mean(load["wall"] for load in each.values()) for each in rounds]
    return max(took_s) / min(took_s)


def residuals(loads: Loads, usage: Usage, walls: Mapping[str, float]) -> dict[str, float]:
    """Return by how much the simulated loads are off, by "load role": 0.1 is 10 % too long.

    A role that hardly does anything in a load has none there.
    """
    found = {f"{load} wall": walls[load] / loads[load]["wall"] - 1 for load in loads}
    for role, each in usage.items():
        for load, amounts in each.items():
            if _judges(load, role, loads[load]):
                simulated_s = max(LEAST_S, amounts["busy"])
                found[f"{load} {role}"] = simulated_s / loads[load][role] - 1
    return found


def _judges(load: str, role: str, measured: Load) -> bool:
    """Whether a load says how good a role's figures are."""
    if role == "head" and _leaves_head_idle(load):
        return False
    return measured[role] >= MEASURABLE * measured["wall"]


def _leaves_head_idle(load: str) -> bool:
    """Whether every task of a load is placed without the head, which has a turn now and then."""
    return len(LOADS[load].cpus) == 1


def simulate(profile: dict[str, Any]) -> tuple[dict[str, dict[str, Amounts]], dict[str, float]]:
    """Run the loads on `sim`; return the amounts per operation by role and load, and the walls.

    ``busy`` is the CPU time that a role was charged, s.
    """
    usage: dict[str, dict[str, Amounts]] = {role: {} for role in ROLES}
    walls = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profile.json"
        path.write_bytes(msgspec.json.encode(msgspec.convert(profile, Profile)))
        for names in by_cluster().values():
            nodes = LOADS[names[0]].nodes
            session: Any = ray.init(
                backend="sim", nodes=nodes, nodes_per_host=len(nodes), profile=str(path)
            )
            try:
                amounts = count(session.cluster)
                for name in names:
                    LOADS[name].run()
                for name in names:
                    for each in amounts.values():
                        each.clear()
                    before, begun_s = busy(session.cluster), ray.now()
                    operations, _ = LOADS[name].run()
                    walls[name] = (ray.now() - begun_s) / operations
                    after = busy(session.cluster)
                    for role, each in amounts.items():
                        found: Any = {**each, "busy": after[role] - before[role]}
                        usage[role][name] = Counter(
                            {key: n / operations for key, n in found.items()}
                        )
            finally:
                ray.shutdown()
    return usage, walls


def busy(cluster: Any) -> dict[str, float]:
    """Return the CPU time that a simulated cluster's processes were charged so far, by role, s."""
    used: dict[str, float] = dict.fromkeys(ROLES, 0.0)
    for process in dict.fromkeys(cluster.processes.values()):
        # A load owns the CPU time that its program has used and not yet let pass (`debt_s`).
        used[process.name.partition(":")[0]] += process.busy_s + process.debt_s
    return used


_RANGES: Mapping[type, str] = {
    PutObjects: "put_range", RunTasks: "run_range", TasksDone: "run_range"
}  # fmt: skip


class _CountedCosts(CostModel):
    """A `CostModel` that counts the costs it is asked for."""

    def __init__(self, role: str, profile: Profile, amounts: Amounts) -> None:
        super().__init__(getattr(profile, role), profile)
        self._amounts = amounts
        self.rests_count = True  # whether they cost something yet or not

    def turn(self, rested_s: float, idled_s: float) -> float:
        self._amounts["turn"] += 1
        return super().turn(rested_s, idled_s)

    def cold(self, rested_s: float, idled_s: float) -> float:
        self._amounts["cold"] += self.coldness(rested_s, idled_s)  # type: ignore[assignment]
        return super().cold(rested_s, idled_s)

    def received(self, messages: list[Any]) -> float:
        self._amounts["message"] += len(messages)
        for message in messages:
            self._count(message, _RANGES.get(type(message), "range"))
        return super().received(messages)

    def sent(self, messages: list[Any]) -> tuple[float, int]:
        for message in messages:
            self._count(message, _RANGES.get(type(message), "range"))
        self._amounts["frame"] += 1
        return super().sent(messages)

    def called(self, what: str, count: int) -> float:
        self._amounts[what] += count
        return super().called(what, count)

    def ran(self, count: int) -> float:
        self._amounts["run"] += 1
        self._amounts["task"] += count
        return super().ran(count)

    def _count(self, message: Any, ranges_of: str) -> None:
        ranges, elements, nbytes = size_of(message)
        self._amounts[ranges_of] += ranges
        self._amounts["element"] += elements
        self._amounts["byte"] += nbytes


def count(cluster: Any) -> dict[str, Amounts]:
    """Count from now on the costs of a simulated cluster's processes; return the amounts, by role.

    Replicas of the GCS are not counted.
    """
    amounts: dict[str, Amounts] = {role: Counter() for role in ROLES}
    for role, each in amounts.items():
        uncounted = cluster.costs[role]
        counted = cluster.costs[role] = _CountedCosts(role, cluster.profile, each)
        for process in cluster.processes.values():
            if process.costs is uncounted:
                process.costs = counted
    return amounts


Figures = dict[str, float]
Usage = Mapping[str, Mapping[str, Amounts]]
"""The amounts of each load that a simulation has counted, by role and load."""


def _first_guess(loads: Loads) -> dict[str, Figures]:
    """Return figures that batch in about the right way."""
    sync, single, array = loads["sync"], loads["single"], loads["array"]
    turn, range_s = sync["node"] / 2, single["node"] / 2
    known = {
        "head": {"turn": turn, "range": range_s},
        "node": {"turn": turn, "range": range_s, "run_range": range_s},
        "driver": {"turn": sync["driver"]},
        "worker": {"turn": sync["worker"], "run": single["worker"], "task": array["worker"]},
        "call": {"submit": single["call"]},
    }
    names = {**UNKNOWNS, "call": CALLS}
    return {role: dict.fromkeys(names[role], 0.0) | known[role] for role in names}


def _solved(loads: Loads, usage: Usage, before: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the figures of all roles and calls that explain loads whose amounts are `usage`; the
    simulation has charged the figures `before`."""
    calls = _calls(loads, usage["driver"])
    return {role: _figures(role, loads, usage[role], before, calls) for role in UNKNOWNS} | {
        "call": calls
    }


def _left_out(loads: Loads, usage: Usage, before: Mapping[str, Figures]) -> dict[str, float]:
    """Return by how much each load is off if the others give the figures: as `residuals`."""
    found = {}
    for load, measured in loads.items():
        others = {
            role: {name: amounts for name, amounts in each.items() if name != load}
            for role, each in usage.items()
        }
        solved = _solved(loads, others, before)
        for role, each in usage.items():
            if not _judges(load, role, measured):
                continue
            amounts = each[load]
            # The simulation has charged the role by the old figures; the new ones replace them.
            charged_s = _charged_s(role, before, amounts)
            predicted_s = amounts["busy"] - charged_s + _charged_s(role, solved, amounts)
            found[f"{load} {role}"] = max(LEAST_S, predicted_s) / measured[role] - 1
    return found


def _intervals(
    rounds: Sequence[Loads], usage: Usage, before: Mapping[str, Figures]
) -> dict[str, dict[str, float]]:
    """Return the ends of each figure's interval, by ``role.figure``; none of a single round."""
    if len(rounds) == 1:
        return {}
    draw = random.Random(0)
    found: dict[str, list[float]] = {}
    for _ in range(RESAMPLES):
        solved = _solved(medians(draw.choices(rounds, k=len(rounds))), usage, before)
        for role, figures in solved.items():
            for name, value in figures.items():
                found.setdefault(f"{role}.{name}", []).append(value)
    return {
        name: dict(zip(("low_s", "high_s"), map(float, np.quantile(each, INTERVAL)), strict=True))
        for name, each in found.items()
    }


def _calls(loads: Loads, usage: Mapping[str, Amounts]) -> Figures:
    """Return what submitting calls cost, from the loads that have measured it."""
    rows = {
        load: tuple(float(amounts[name]) for name in CALLS)
        for load, amounts in usage.items()
        if loads[load]["call"]
    }
    calls_s = {load: loads[load]["call"] for load in rows}
    return _solve(CALLS, rows, calls_s, calls_s)


def _charged_s(role: str, figures: Mapping[str, Figures], amounts: Amounts) -> float:
    """Return the CPU time that figures charge a role for amounts; the driver's has its calls'."""
    charged_s = sum(figures[role][name] * amounts[name] for name in UNKNOWNS[role])
    if role == "driver":
        charged_s += sum(figures["call"][name] * amounts[name] for name in CALLS)
    return charged_s


def _figures(
    role: str,
    loads: Loads,
    usage: Mapping[str, Amounts],
    before: Mapping[str, Figures],
    calls: Figures,
) -> Figures:
    """Return a role's figures; `before` are those that the simulation has charged."""
    names, rows, wanted_s = UNKNOWNS[role], {}, {}
    for load, amounts in usage.items():
        if role == "worker" and not amounts["task"]:
            continue
        if role == "head" and _leaves_head_idle(load):
            continue
        rows[load] = tuple(float(amounts[name]) for name in names)
        submitted_s = 0.0
        if role == "driver":
            submitted_s = sum(calls[name] * amounts[name] for name in CALLS)
        # Copies, frames, pickles; and of the head what is the node's to find.
        known_s = max(0.0, amounts["busy"] - _charged_s(role, before, amounts))
        wanted_s[load] = loads[load][role] - submitted_s - known_s
    return _solve(names, rows, wanted_s, {load: loads[load][role] for load in rows})


def _solve(
    unknowns: Sequence[str],
    rows: Mapping[str, tuple[float, ...]],
    wanted_s: Mapping[str, float],
    measured_s: Mapping[str, float],
) -> Figures:
    """Return non-negative figures that explain `wanted_s` best, by errors relative to all that was
    measured."""
    measured = np.array([max(LEAST_S, measured_s[name]) for name in rows])
    amounts = np.array(list(rows.values())) / measured[:, None]
    wanted = np.array([max(0.0, wanted_s[name]) for name in rows]) / measured
    # Bytes are counted in thousands, and turns in ones: alike columns are solved more exactly.
    scale = np.maximum(amounts.max(axis=0), np.finfo(float).tiny)
    found = nnls(amounts / scale, wanted)[0] / scale
    return dict(zip(unknowns, map(float, found), strict=True))


def _profile(
    machine: dict[str, Any], figures: dict[str, Figures], hop_s: float, after: float
) -> dict[str, Any]:
    head, node, driver, worker, call = (
        figures[role] for role in ("head", "node", "driver", "worker", "call")
    )

    def turn(figure: Figures) -> dict[str, float]:
        return {
            "turn_s": figure["turn"],
            "after_s": after * figure["turn"],
            "cold_s": figure["cold"],
            "frame_s": call["frame"],
        }

    def scheduler(figure: Figures) -> dict[str, Any]:
        each = {
            "range_s": figure["range"], "element_s": node["element"], "byte_s": node["byte"]
        }  # fmt: skip
        put = {**each, "range_s": node["put_range"]}
        run = {**each, "range_s": node["run_range"]}
        return {
            **turn(figure),
            "received": each,
            "sent": each,
            "received_by_type": {"PutObjects": put, "TasksDone": run},
            "sent_by_type": {"RunTasks": run},
        }

    elements = {"element_s": driver["element"], "byte_s": driver["byte"]}
    of_worker = {"byte_s": worker["byte"]}
    submitted = {"element_s": driver["element"], **of_worker}
    return {
        **machine,
        "loopback_latency_s": hop_s,
        "latency_s": hop_s,
        "head": scheduler(head),
        "node": scheduler(node),
        # A submitter is a worker too: as a client it costs what a driver does.
        "worker": {
            **turn(worker),
            "received": of_worker,
            "sent": of_worker,
            "received_by_type": {"TaskResults": {"message_s": driver["message"], **submitted}},
            "sent_by_type": {"SubmitTasks": submitted},
        },
        "driver": {
            **turn(driver),
            "received": {"message_s": driver["message"], **elements},
            "sent": elements,
        },
        "call_s": {
            **{name: each for name, each in call.items() if name != "frame"},
            "get": driver["get"],
            "next": driver["next"],
            "put": driver["put"],
            "wait": driver["wait"],
            "watch": driver["watch"],
            "load": worker["load"],
            "input": worker["input"],
            "read": worker["read"],
            "item": worker["item"],
        },
        "range_s": worker["run"],
        "task_s": worker["task"],
    }
