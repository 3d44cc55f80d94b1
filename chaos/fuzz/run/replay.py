"""Runs a case of a file again: in virtual time, exactly as before, or on real processes.

On `local` the program runs with the steps of the plan that processes can have, at the same times
since its begin; the rest is named in `not_on_local`. Processes are not deterministic, and nothing
tells which death hit which task, so only values, hangs and what is left at the end count there. Not
so histories of keys: each process knows its own operations alone.
"""

from __future__ import annotations

import gc
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.faults.cluster_operations import backends_with
from raytwin.chaos.faults.injector import Injection, attach, proxied_for
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, Case
from raytwin.chaos.fuzz.oracle import invariants
from raytwin.chaos.fuzz.oracle.findings import Finding
from raytwin.chaos.fuzz.oracle.history import begin_history
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.programs.interpreter import run_body
from raytwin.chaos.fuzz.programs.program import SLOT
from raytwin.chaos.fuzz.run.api_engine import Api, begin_program
from raytwin.chaos.fuzz.run.case_run import Report, raised, run_case, wrong_value


def on_sim(case: Case, trace: bool) -> tuple[Report, list[str]]:
    """Run a case in virtual time; return its report, and the lines of its trace if it is asked for.

    Raises ValueError for a program that is none, such as one with an unknown variable.
    """
    lines: list[str] = []

    def look(session: Any, injections: list[Injection]) -> None:
        if trace:
            lines.extend(trace_of(session, injections))

    try:
        return run_case(case, at_end=look), lines
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its program cannot be run: {type(error).__name__}: {error}") from error


def trace_of(session: Any, injections: list[Injection]) -> list[str]:
    """Return faults, events and executed ranges, a line each, by time.

    It reads the simulated parts, so that it works where the cluster is stuck.
    """
    rows = [(each.clock_s, f"fault     {each.step}{_failed(each)}") for each in injections]
    for at_s, kind, subject, detail, number in _events(session.cluster):
        times = f" ({number} times)" if number > 1 else ""
        rows.append((at_s, f"event     {kind} {subject}{times}{': ' + detail if detail else ''}"))
    ran = [row for node in session.cluster.node_managers.values() for row in node.timeline.rows]
    for name, node, worker, start_s, elapsed_s, number, *_, attempt, kind, status, _, _ in ran:
        times = f" × {number}" if number > 1 else ""
        again = f", attempt {attempt}" if attempt else ""
        failed = "" if status == 0 else ", failed"
        where = f"node {node}, worker {worker}, for {elapsed_s:.6f} s{again}{failed}"
        rows.append((start_s, f"{kind:<9} {name}{times} on {where}"))
    return [f"{at_s:11.6f} s  {text}" for at_s, text in sorted(rows, key=lambda row: row[0])]


def _events(cluster: Any) -> list[tuple[float, str, str, str, int]]:
    """Return the GCS's events; none while its head restarts."""
    try:
        return list(cluster.gcs.events.rows)
    except LookupError:
        return []


def _failed(injection: Injection) -> str:
    return f" (failed: {injection.error})" if injection.error else ""


STORE_BYTES_MIN = 1 << 20
"""The smallest store that real processes have."""


def _works_on_local(step: Step) -> bool:
    return "local" in backends_with(step.target.operations[step.action])


def not_on_local(case: Case) -> list[str]:
    """Return what of a case `local` cannot do, in a few words each."""
    steps = [str(step) for step in case.plan.steps if not _works_on_local(step)]
    found = [f"{len(steps)} steps, such as {steps[0]}"] if steps else []
    if case.drivers:
        found.append(f"{len(case.drivers)} further drivers")
    return found


def on_local(case: Case) -> Report:
    """Run a case on real processes, as far as they can."""
    report = Report(case, tasks=case.program.tasks)
    expected = run_body(Sequential(), case.program)
    begin_history()
    begin_program()
    plan = Plan(filter(_works_on_local, case.plan.steps))
    with (
        tempfile.TemporaryDirectory(prefix="raytwin-replay-") as directory,
        proxied_for(plan),
    ):
        session: Any = api.init(backend="local", **_options(case, Path(directory)))
        try:
            injector = attach(session, plan)
            outcomes = run_body(Api(driver=True), case.program)
            report.outcomes = len(expected)
            report.failures += _wrong_values(expected, outcomes)
            del outcomes
            gc.collect()
            injector.stop()
            report.faults = len(injector.injections)
            report.failures += invariants.settled(lambda: invariants.at_end(session), api.sleep)
        except Exception as error:
            report.failures.append(raised(error))
        finally:
            api.shutdown()
    return report


def _wrong_values(expected: list[Any], outcomes: list[Any]) -> list[Finding]:
    found = map(wrong_value, count(), expected, outcomes)
    return [wrong for wrong in found if wrong is not None]


def _options(case: Case, directory: Path) -> dict[str, Any]:
    gcs = dict(case.gcs)
    if "gcs_storage" in gcs:
        gcs["gcs_storage"] = directory / "gcs"
    options = {
        "nodes": case.nodes,
        "cpus_per_node": case.cpus,
        "seed": case.seed,
        "resources": {SLOT: case.slots} if case.slots else None,
        "num_gpus": case.gpus or None,
        "policy": case.policy,
        "heartbeat_timeout_s": case.heartbeat_timeout_s,
        "timers": {**case.timers, "direct_after": case.direct_after},
        **gcs,
    }
    if case.store_bytes != STORE_BYTES:
        options["object_store_memory"] = max(case.store_bytes, STORE_BYTES_MIN)
    return options
