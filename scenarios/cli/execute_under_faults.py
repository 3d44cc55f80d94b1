"""``raytwin exec --faults``: a script under a fault plan, with a recovery summary at its end."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.faults.recovery_summary import Recovery, impossible, never_due, observed
from raytwin.runtime.api import lifecycle
from raytwin.scenarios.core import campaigns
from raytwin.scenarios.core.results import CheckRecord

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""A number among words; it may have commas between thousands."""


def execute_under_faults(
    run: Callable[[], int],
    script: Path,
    backend: str,
    plan: Plan,
    json: Path | None = None,
) -> int:
    """Run a script under a fault plan; print how its clusters recovered; return its exit code.

    `run` executes it. The clusters end where the script does. The code is 1 if the script's is 0
    and a cluster is not as the plan expects, or the plan was not carried out: a step was
    impossible, or a fault never due. A plan that expects some of that, by `faults_failed` or
    `faults_not_due`, is held to it. With `json` the summary is also written there, for the report.
    """
    date, started_s = campaigns.now(), time.perf_counter()
    left: SystemExit | None = None
    with observed(plan) as clusters, _tail_of_output() as tail:
        try:
            code = run()
        except SystemExit as error:
            left, code = (
                error,
                error.code if isinstance(error.code, int) else int(error.code is not None),
            )
        lifecycle.shutdown()
    printed: dict[str, float] = {}
    if numbers := NUMBER.findall(tail.text):
        printed["printed"] = float(numbers[-1].replace(",", ""))
    held = True
    for number, cluster in enumerate(clusters, start=1):
        of = f" of cluster {number}" if len(clusters) > 1 else ""
        print(f"raytwin: recovery summary{of}", *cluster.lines(), sep="\n", file=sys.stderr)
        for finding in cluster.check(printed):
            held = held and finding.ok
            mark = "holds" if finding.ok else "FAILS"
            print(f"  {mark} {finding.name}: {finding.detail}", file=sys.stderr)
    if json is not None:
        found = campaigns.ScriptUnderFaults(
            date=date,
            script=script.name,
            backend=backend,
            plan=plan.sentences(),
            clusters=[_told(each, printed) for each in clusters],
            exit_code=code,
            duration_s=round(time.perf_counter() - started_s, 3),
        )
        campaigns.write(json, found)
    if not clusters:
        print("raytwin: the script has started no cluster: no fault hit it", file=sys.stderr)
    for wrong in impossible(plan, clusters) + never_due(plan, clusters):
        held = False
        print(f"  FAILS the plan was not carried out: {wrong}", file=sys.stderr)
    if left is not None and code:
        raise left
    return code or (0 if held else 1)


def _told(cluster: Recovery, printed: Mapping[str, float]) -> campaigns.Cluster:
    """Return a cluster as the file has it."""
    noticed = {id(each): event for each, event in cluster.detections() if event is not None}
    steps = []
    for each in cluster.injections:
        step = campaigns.Step(each.at_s, str(each.step), each.error)
        if id(each) in noticed:
            at_s, kind, subject, *_ = noticed[id(each)]
            step.noticed_s, step.noticed = at_s - each.clock_s, f"{kind} {subject}"
        steps.append(step)
    checks = [CheckRecord(each.name, each.ok, each.detail) for each in cluster.check(printed)]
    return campaigns.Cluster(steps, cluster.numbers(), checks)


class _Tail:
    """Standard output, of which the last characters are kept."""

    KEPT = 10_000

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self.text = ""

    def write(self, text: str) -> int:
        """Write a text."""
        self.text = (self.text + text)[-self.KEPT :]
        return self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


@contextmanager
def _tail_of_output() -> Iterator[_Tail]:
    """Keep the end of what is printed within this context."""
    before, tail = sys.stdout, _Tail(sys.stdout)
    sys.stdout = tail
    try:
        yield tail
    finally:
        if sys.stdout is tail:
            sys.stdout = before
