"""From CPU times that were measured to the figures of a profile that explain them.

What a load costs a role is linear in how often it does what (`usage`), and
how often that is depends on how messages batch, so on the figures. Hence: simulate the
same load with the figures so far, count, solve for better figures, and again until they
no longer move. A role's unknowns are as many as the loads tell apart:

- **node**: a turn, a range, an element, a range of puts;
- **driver**: a turn, an element, a ``get``, a ``put``, a ``wait``; what a ``submit``
  costs is measured by itself, within the calls;
- **worker**: a turn, a range that it runs, a task.

The head has the node's figures. Then the way of one task: CPU time is not all of it,
since messages take time to wake a reader, and not all CPU time is in it, since a process
that has sent keeps books while the reader is at work (`after_s`). The time of a hop is
measured on bare processes. How long one task at a time takes on the real runtime gives the
rest: the part of turns that comes after what they send, or more time for a hop if
there is none.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import raytwin as ray
from raytwin.scenarios.workloads.calibration_loads import LOADS
from raytwin.simulator.cluster.cost_usage import Usage, count
from raytwin.simulator.machine.costs import ROLES, Profile

Load = dict[str, float]
"""Seconds per operation: CPU by role, ``wall``, and ``call`` (within submitting calls)."""

HOPS = 3
"""On the way of a task that returns something short to a driver who waits for it."""
ROUNDS = 6
"""After three the figures of one machine moved by less than 1 %."""
LEAST_S = 1e-8
"""A difference of two noisy figures is never taken to be less."""
AFTER_MAX = 0.9
"""Of a turn: to be woken and to send comes before."""
PUT = "PutObjects"


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
        figures = {
            "node": _node(loads, usage["node"]),
            "driver": _driver(loads, usage["driver"]),
            "worker": _worker(loads, usage["worker"]),
        }
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


def simulate(profile: dict[str, Any]) -> tuple[dict[str, dict[str, Usage]], dict[str, float]]:
    """Run the loads on `sim`; return the usage per operation by role and load, and the walls."""
    usage: dict[str, dict[str, Usage]] = {role: {} for role in ROLES}
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
                before, begun_s = copy.deepcopy(amounts), ray.now()
                operations, _ = run()
                walls[name] = (ray.now() - begun_s) / operations
                for role in ROLES:
                    usage[role][name] = amounts[role].minus(before[role], 1 / operations)
        finally:
            ray.shutdown()
    return usage, walls


Figures = dict[str, float]


def _first_guess(loads: dict[str, Load]) -> dict[str, Figures]:
    """Return figures that batch in about the right way."""
    sync, single, array = loads["sync"], loads["single"], loads["array"]
    return {
        "node": {"turn": sync["node"] / 2, "range": single["node"] / 2, "element": 0.0, "put": 0.0},
        "driver": {"turn": sync["driver"], "element": 0.0, "get": 0.0, "put": 0.0, "wait": 0.0},
        "worker": {"turn": sync["worker"], "run": single["worker"], "task": array["worker"]},
    }


def _node(loads: dict[str, Load], usage: dict[str, Usage]) -> Figures:
    rows = {}
    for name, each in usage.items():
        puts = each.received.get(PUT, 0.0)
        ranges = sum(each.received.values()) + sum(each.sent.values()) - puts
        rows[name] = (each.turns, ranges, each.elements, puts)
    return _solve(("turn", "range", "element", "put"), rows, {n: loads[n]["node"] for n in rows})


def _driver(loads: dict[str, Load], usage: dict[str, Usage]) -> Figures:
    rows, left_s = {}, {}
    submit_s = loads["single"]["call"]
    for name, each in usage.items():
        calls = each.calls
        rows[name] = (
            each.turns, each.elements,
            calls.get("get", 0.0), calls.get("put", 0.0), calls.get("wait", 0.0),
        )  # fmt: skip
        left_s[name] = loads[name]["driver"] - submit_s * calls.get("submit", 0.0)
    return _solve(("turn", "element", "get", "put", "wait"), rows, left_s)


def _worker(loads: dict[str, Load], usage: dict[str, Usage]) -> Figures:
    rows = {n: (each.turns, each.runs, each.tasks) for n, each in usage.items() if each.tasks}
    return _solve(("turn", "run", "task"), rows, {n: loads[n]["worker"] for n in rows})


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
        "received_by_type": {PUT: {"range_s": node["put"], "element_s": node["element"]}},
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
