"""``raytwin exec --backend sim``: an unchanged script in virtual time, with a summary at its end.

The script, its tasks and its actors see virtual time: see `virtual_time` and `virtual_random`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from raytwin.reports.numbers import short
from raytwin.runtime.api import backend, lifecycle
from raytwin.scenarios.core.near_threshold import near
from raytwin.simulator.cluster.cluster_usage import Usage, UsageMeter
from raytwin.simulator.cluster.simulated_cluster import SimCluster
from raytwin.simulator.programs import virtual_random, virtual_time
from raytwin.simulator.programs.body_costs import MeasuredCosts, RecordedCosts

BUSY = 0.8
"""The share of the time from which on a resource is said to saturate."""
RESOURCES = {
    "cpus": "the nodes' CPUs, which tasks and actors reserve",
    "cores": "the cores of a host",
    "network": "a network card",
    "uplink": "a rack's uplink",
    "driver": "the driver's process",
    "head": "the head's process",
    "node": "a node's process",
}
"""By resource of a `Usage`: what it is called."""


def predict(run: Callable[[], int], seed: int, written: Path | None = None) -> int:
    """Run a script in virtual time; print what its clusters were used for; return its exit code.

    `run` executes the script, with ``init()`` told to simulate. The clusters end where it does.
    With `written` the usages are a JSON list in that file, too; without a cluster there is none.
    """
    virtual_time.install()
    virtual_random.install(seed)
    lines: list[str] = []
    usages: list[Usage] = []

    def begin(session: Any) -> None:
        cluster: SimCluster = session.cluster
        meter = UsageMeter(cluster)

        def end() -> None:
            usage = meter.usage()
            usages.append(usage)
            lines.extend(describe(usage, cluster))

        session.before_shutdown.append(end)

    backend.on_connect.append(begin)
    try:
        return run()
    finally:
        lifecycle.shutdown()
        for line in lines:
            print(f"raytwin: {line}", file=sys.stderr)
        if written is not None and usages:
            written.write_bytes(msgspec.json.encode(usages))


def describe(usage: Usage, cluster: SimCluster) -> list[str]:
    """Return what a cluster was used for, a line each."""
    costs = cluster.costs_of_bodies
    profile = cluster.profile
    lines = [
        f"predicted makespan {usage.makespan_s:.4g} s, from init() to the end: {usage.tasks:,}"
        f" tasks and calls on {usage.nodes:,} nodes with {usage.cpus:,.5g} CPUs, profile"
        f" {profile.name}"
    ]
    if isinstance(costs, MeasuredCosts):
        lines.append(
            f"bodies cost the CPU time that they took here, {costs.measured_s:.3g} s, times the"
            f" profile's body_scale, {costs.scale:g}: runs differ a little; --cost declared is"
            " deterministic"
        )
    elif isinstance(costs, RecordedCosts):
        lines.append(
            f"bodies cost what was recorded: {costs.known:,} their own time,"
            f" {costs.by_function:,} the mean of their function, {costs.unknown:,} nothing, since"
            " their function is not in the recording"
        )
    else:
        lines.append("bodies cost what they declare: sleeps, and raytwin.compute")
    lines.append(
        f"moved {short(usage.bytes_between_hosts, 'bytes')} between hosts,"
        f" {short(usage.bytes_within_hosts, 'bytes')} within them"
    )
    order = sorted(usage.shares, key=lambda name: -usage.shares[name])
    if order:
        shares = ", ".join(f"{RESOURCES[name]} {usage.shares[name]:.1%}" for name in order)
        lines.append(f"busy: {shares}")
        full = [RESOURCES[name] for name in order if usage.shares[name] >= BUSY]
        if full:
            lines.append(f"saturated: {'; '.join(full)}")
        else:
            lines.append("nothing is saturated: the program waits for sleeps, latencies and itself")
    if usage.threshold.is_near:
        options = " and ".join(f"--spill-wait-s {each:.6g}" for each in usage.threshold.sides_s)
        lines.append(
            f"near a threshold: {near(usage.threshold)}; {options} give both sides, as 'raytwin"
            " whatif' does"
        )
    return lines
