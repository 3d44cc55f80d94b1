"""``raytwin exec --faults``: a script under a fault plan, with a recovery summary at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.faults.recovery_summary import observed
from raytwin.runtime.api import lifecycle
from raytwin.scenarios.cli.execute import execute


def execute_under_faults(
    script: Path, args: Sequence[str], options: dict[str, Any], plan: Plan
) -> int:
    """Run a script under a fault plan; print how its clusters recovered; return its exit code.

    The clusters end where the script does. The code is 1 if the script's is 0 and a cluster is not
    as the plan expects.
    """
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
    if not clusters:
        print("raytwin: the script has started no cluster: no fault hit it", file=sys.stderr)
    if left is not None and code:
        raise left
    return code or (0 if held else 1)
