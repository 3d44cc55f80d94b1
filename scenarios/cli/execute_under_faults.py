"""``raytwin exec --faults``: a script under a fault plan, with a recovery summary at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.faults.recovery_summary import Recovery, observed
from raytwin.runtime.api import lifecycle
from raytwin.scenarios.cli.execute import execute
from raytwin.scenarios.core import campaigns
from raytwin.scenarios.core.results import CheckRecord


def execute_under_faults(
    script: Path,
    args: Sequence[str],
    options: dict[str, Any],
    plan: Plan,
    json: Path | None = None,
) -> int:
    """Run a script under a fault plan; print how its clusters recovered; return its exit code.

    The clusters end where the script does. The code is 1 if the script's is 0 and a cluster is not
    as the plan expects. With `json` the summary is also written there, for the report.
    """
    date, started_s = campaigns.now(), time.perf_counter()
    left: SystemExit | None = None
    with observed(plan) as clusters:
        try:
            code = execute(script, args, options)
        except SystemExit as error:
            left, code = error, 0 if error.code in (None, 0) else 1
        lifecycle.shutdown()
    held = True
    for number, cluster in enumerate(clusters, start=1):
        of = f" of cluster {number}" if len(clusters) > 1 else ""
        print(f"raytwin: recovery summary{of}", *cluster.lines(), sep="\n", file=sys.stderr)
        for finding in cluster.check():
            held = held and finding.ok
            mark = "holds" if finding.ok else "FAILS"
            print(f"  {mark} {finding.name}: {finding.detail}", file=sys.stderr)
    if json is not None:
        found = campaigns.ScriptUnderFaults(
            date=date,
            script=script.name,
            backend=options.get("backend", "local"),
            plan=plan.sentences(),
            clusters=list(map(_told, clusters)),
            exit_code=code,
            duration_s=round(time.perf_counter() - started_s, 3),
        )
        campaigns.write(json, found)
    if not clusters:
        print("raytwin: the script has started no cluster: no fault hit it", file=sys.stderr)
    if left is not None and code:
        raise left
    return code or (0 if held else 1)


def _told(cluster: Recovery) -> campaigns.Cluster:
    """Return a cluster as the file has it."""
    noticed = {id(each): event for each, event in cluster.detections() if event is not None}
    steps = []
    for each in cluster.injections:
        step = campaigns.Step(each.at_s, str(each.step), each.error)
        if id(each) in noticed:
            at_s, kind, subject, *_ = noticed[id(each)]
            step.noticed_s, step.noticed = at_s - each.clock_s, f"{kind} {subject}"
        steps.append(step)
    checks = [CheckRecord(each.name, each.ok, each.detail) for each in cluster.check()]
    return campaigns.Cluster(steps, cluster.numbers(), checks)
