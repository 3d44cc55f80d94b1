"""A scenario in this process, under a fault plan: what was done is in its outcome, with a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raytwin.chaos.faults.expectations import Finding, check_all
from raytwin.chaos.faults.injector import timeline
from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.faults.proxied_links import noting_version
from raytwin.chaos.faults.recovery_summary import Recovery, impossible, never_due, observed
from raytwin.scenarios.core.scenario import Check, Outcome, Request, Scenario


def run_under(faults: Plan | None, scenario: Scenario, request: Request) -> Outcome:
    """Run a scenario in this process, each of its clusters under a fault plan, if there is one.

    Of its own checks those are judged that the plan leaves their meaning; a finding names the rest.
    """
    with noting_version() as versions:
        outcome = scenario.run(request) if faults is None else _run(faults, scenario, request)
    outcome.versions |= versions
    return outcome


def _run(faults: Plan, scenario: Scenario, request: Request) -> Outcome:
    with observed(faults) as clusters:
        outcome = scenario.run(request)
    meaningless = [check.name for check in outcome.checks if not check.under_faults]
    if meaningless:
        outcome.findings.append(
            "The fault plan leaves the scenario's own checks of times, memory and places without"
            f" meaning, and they are not judged: {'; '.join(meaningless)}."
        )
    outcome.checks = [check for check in outcome.checks if check.under_faults]
    outcome.parameters["faults"] = [str(step) for step in faults.steps]
    for number, cluster in enumerate(clusters, start=1):
        outcome.timeline += timeline(cluster.injections)
        for each in cluster.injections:
            failed = f" (not possible: {each.error})" if each.error else ""
            outcome.findings.append(f"Cluster {number}: {each.step} at {each.at_s:.3f} s{failed}.")
    outcome.checks.append(_carried_out(faults, clusters))
    outcome.checks += _as_expected(faults, outcome.metrics, clusters)
    return outcome


def _carried_out(faults: Plan, clusters: Sequence[Recovery]) -> Check:
    """No step was impossible, and each was due in one cluster at least."""
    wrong = impossible(faults, clusters) + never_due(faults, clusters)
    done = sum(len(cluster.injections) for cluster in clusters)
    return Check(
        "every step of the fault plan was carried out",
        not wrong,
        "; ".join(wrong) or f"{done} times, in {len(clusters)} clusters",
    )


def _as_expected(
    faults: Plan, metrics: Mapping[str, float], clusters: Sequence[Recovery]
) -> list[Check]:
    """Compare the scenario's metrics, and each cluster's recovery, with what the plan expects.

    A cluster that had ended before the plan did says nothing about it.
    """
    judged = [n for n, each in enumerate(clusters, start=1) if not each.not_due()]
    known = {number: clusters[number - 1].check(metrics) for number in judged}
    known = known or {1: check_all(faults.expect, metrics)}
    found: dict[Finding, list[int]] = {}
    for number, findings in known.items():
        for each in findings:
            found.setdefault(each, []).append(number)
    checks = []
    for each, numbers_of in found.items():
        some = len(numbers_of) < len(known)
        of = f" (cluster {', '.join(map(str, numbers_of))} of {len(clusters)})" if some else ""
        checks.append(Check(each.name, each.ok, each.detail + of))
    return checks
