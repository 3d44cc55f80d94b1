"""From CPU times that were measured to the figures of a profile that explain them.

A role's CPU time is linear in the amounts of turns, ranges, calls, ... that a load causes, and
these depend on how messages batch, so on the figures. Hence: simulate the
same load with the figures so far, count, solve for better figures, and again until they
no longer move. A role has as many `UNKNOWNS` as the loads can distinguish. The cost of a ``submit``
is measured by itself, within the calls.

The head has the node's figures. Then the way of one task: CPU time is not all of it,
since messages take time to wake a reader, and not all CPU time is in it, since a process
that has sent keeps books while the reader is at work (`after_s`). The time of a hop is
measured on bare processes. How long one task at a time takes on the real runtime gives the
rest: the part of turns that comes after what they send, or more time for a hop if
there is none.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import raytwin as ray
from raytwin.runtime.control.messages import PutObjects
from raytwin.scenarios.workloads.calibration_loads import LOADS
from raytwin.simulator.machine.costs import ROLES, CostModel, Profile, size_of

Load = dict[str, float]
"""Seconds per operation: CPU by role, ``wall``, and ``call`` (within submitting calls)."""

HOPS = 3
"""Messages from a driver's submission of a short task until the driver has its result."""
ROUNDS = 6
"""After three the figures of one machine moved by less than 1 %."""
LEAST_S = 1e-8
"""A difference of two noisy figures is never taken to be less."""
AFTER_MAX = 0.9
"""Of a turn: to be woken and to send comes before."""
UNKNOWNS = {
    "node": ("turn", "range", "element", "put_range"),
    "driver": ("turn", "element", "get", "put", "wait"),
    "worker": ("turn", "run", "task"),
}
"""By role: its costs. A ``run`` is a range that a worker runs."""

Amounts = Counter[str]
"""How often a role did each thing that costs CPU time."""


def fit(loads: dict[str, Load], machine: dict[str, Any]) -> dict[str, Any]:
    """Return a profile: the fields of `machine`, and the roles' figures.

    `machine` has the other fields of `costs.Profile`, ``loopback_latency_s``
    being the least that a hop takes. Raises RuntimeError if a cluster is connected.
    """
    hop_s = machine["loopback_latency_s"]
    after = 0.0
    profile = _profile(machine, loads, _first_guess(loads), hop_s, after)
    for _ in range(ROUNDS):
        usage, walls = simulate(profile)
        figures = {role: _figures(role, loads, usage[role]) for role in UNKNOWNS}
        # Driver, node, worker, driver: the result does not wait for the node.
        on_the_way = sum(figures[role]["turn"] for role in figures)
        # How much sooner the task has to be back than it was with the last figures.
        early_s = walls["sync"] - loads["sync"]["wall"]
        hops_s = hop_s - machine["loopback_latency_s"]
        wanted_s = after * on_the_way - HOPS * hops_s + early_s
        after = min(AFTER_MAX, max(0.0, wanted_s) / max(LEAST_S, on_the_way))
        hop_s = machine["loopback_latency_s"] + max(0.0, -wanted_s) / HOPS
        profile = _profile(machine, loads, figures, hop_s, after)
    return profile


def simulate(profile: dict[str, Any]) -> tuple[dict[str, dict[str, Amounts]], dict[str, float]]:
    """Run the loads on `sim`; return the amounts per operation by role and load, and the walls."""
    usage: dict[str, dict[str, Amounts]] = {role: {} for role in ROLES}
    walls = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profile.json"
        path.write_bytes(msgspec.json.encode(msgspec.convert(profile, Profile)))
        session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=str(path))
        try:
            amounts = count(session.cluster)
            for run in LOADS.values():
                run()
            for name, run in LOADS.items():
                for each in amounts.values():
                    each.clear()
                begun_s = ray.now()
                operations, _ = run()
                walls[name] = (ray.now() - begun_s) / operations
                for role, each in amounts.items():
                    per_operation: Any = {key: n / operations for key, n in each.items()}
                    usage[role][name] = Counter(per_operation)
        finally:
            ray.shutdown()
    return usage, walls


class _CountedCosts(CostModel):
    """A `CostModel` that counts the costs it is asked for."""

    def __init__(self, role: str, profile: Profile, amounts: Amounts) -> None:
        super().__init__(getattr(profile, role), profile)
        self._amounts = amounts

    def turn(self) -> float:
        self._amounts["turn"] += 1
        return super().turn()

    def received(self, messages: list[Any]) -> float:
        for message in messages:
            self._count(message, "put_range" if type(message) is PutObjects else "range")
        return super().received(messages)

    def sent(self, messages: list[Any]) -> tuple[float, int]:
        for message in messages:
            self._count(message, "range")
        return super().sent(messages)

    def called(self, what: str, count: int) -> float:
        self._amounts[what] += count
        return super().called(what, count)

    def ran(self, count: int) -> float:
        self._amounts["run"] += 1
        self._amounts["task"] += count
        return super().ran(count)

    def _count(self, message: Any, ranges_of: str) -> None:
        ranges, elements, _ = size_of(message)
        self._amounts[ranges_of] += ranges
        self._amounts["element"] += elements


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


def _first_guess(loads: dict[str, Load]) -> dict[str, Figures]:
    """Return figures that batch in about the right way."""
    sync, single, array = loads["sync"], loads["single"], loads["array"]
    known = {
        "node": {"turn": sync["node"] / 2, "range": single["node"] / 2},
        "driver": {"turn": sync["driver"]},
        "worker": {"turn": sync["worker"], "run": single["worker"], "task": array["worker"]},
    }
    return {role: dict.fromkeys(names, 0.0) | known[role] for role, names in UNKNOWNS.items()}


def _figures(role: str, loads: dict[str, Load], usage: dict[str, Amounts]) -> Figures:
    names, rows, wanted_s = UNKNOWNS[role], {}, {}
    for load, amounts in usage.items():
        if role == "worker" and not amounts["task"]:
            continue
        rows[load] = tuple(float(amounts[name]) for name in names)
        wanted_s[load] = loads[load][role]
        if role == "driver":
            wanted_s[load] -= loads["single"]["call"] * amounts["submit"]
    return _solve(names, rows, wanted_s)


def _solve(
    unknowns: Sequence[str], rows: Mapping[str, tuple[float, ...]], wanted_s: Mapping[str, float]
) -> Figures:
    """Return non-negative figures that explain `wanted_s` best, by relative error.

    There are few unknowns: every choice of those that are 0 is tried.
    """
    wanted = np.array([max(LEAST_S, wanted_s[name]) for name in rows])
    amounts = np.array(list(rows.values())) / wanted[:, None]
    best, least = np.zeros(len(unknowns)), np.inf
    for chosen in itertools.product((False, True), repeat=len(unknowns)):
        columns = np.flatnonzero(chosen)
        found = np.zeros(len(unknowns))
        if len(columns):
            found[columns] = np.linalg.lstsq(amounts[:, columns], np.ones(len(wanted)))[0]
        error = float(np.sum((amounts @ found - 1) ** 2))
        if (found >= 0).all() and error < least:
            best, least = found, error
    return dict(zip(unknowns, map(float, best), strict=True))


def _profile(
    machine: dict[str, Any],
    loads: dict[str, Load],
    figures: dict[str, Figures],
    hop_s: float,
    after: float,
) -> dict[str, Any]:
    node, driver, worker = figures["node"], figures["driver"], figures["worker"]

    def turn(figure: Figures) -> dict[str, float]:
        return {"turn_s": figure["turn"], "after_s": after * figure["turn"]}

    ranges = {"range_s": node["range"], "element_s": node["element"]}
    scheduler = {
        **turn(node),
        "received": ranges,
        "sent": ranges,
        "received_by_type": {
            "PutObjects": {"range_s": node["put_range"], "element_s": node["element"]}
        },
    }
    elements = {"element_s": driver["element"]}
    return {
        **machine,
        "loopback_latency_s": hop_s,
        "latency_s": hop_s,
        "head": scheduler,
        "node": scheduler,
        # A submitter is a worker too: as a client it costs what a driver does.
        "worker": {
            **turn(worker),
            "received_by_type": {"TaskResults": elements},
            "sent_by_type": {"SubmitTasks": elements},
        },
        "driver": {**turn(driver), "received": elements, "sent": elements},
        "call_s": {
            "submit": loads["single"]["call"],
            "get": driver["get"],
            "put": driver["put"],
            "wait": driver["wait"],
        },
        "range_s": worker["run"],
        "task_s": worker["task"],
    }
