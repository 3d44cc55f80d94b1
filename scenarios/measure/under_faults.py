"""A scenario in this process, under a fault plan: what was done is in its outcome, with a check."""

from __future__ import annotations

from raytwin.chaos.faults.expectations import check_all
from raytwin.chaos.faults.injector import Injection, every_cluster, timeline
from raytwin.chaos.faults.plan import Plan
from raytwin.scenarios.core.scenario import Check, Outcome, Request, Scenario


def run_under(faults: Plan | None, scenario: Scenario, request: Request) -> Outcome:
    """Run a scenario in this process, each of its clusters under a fault plan, if there is one.

    Of its own checks those are judged that the plan leaves their meaning; a finding names the rest.
    """
    if faults is None:
        return scenario.run(request)
    with every_cluster(faults) as clusters:
        outcome = scenario.run(request)
    meaningless = [check.name for check in outcome.checks if not check.under_faults]
    if meaningless:
        outcome.findings.append(
            "The fault plan leaves the scenario's own checks of times, memory and places without"
            f" meaning, and they are not judged: {'; '.join(meaningless)}."
        )
    outcome.checks = [check for check in outcome.checks if check.under_faults]
    outcome.parameters["faults"] = [str(step) for step in faults.steps]
    for number, injections in enumerate(clusters, start=1):
        outcome.timeline += timeline(injections)
        for each in injections:
            failed = f" (not possible: {each.error})" if each.error else ""
            outcome.findings.append(f"Cluster {number}: {each.step} at {each.at_s:.3f} s{failed}.")
    outcome.checks.append(_carried_out(faults, clusters))
    found = check_all(faults.expect, outcome.metrics)
    outcome.checks += [Check(each.name, each.ok, each.detail) for each in found]
    return outcome


def _carried_out(faults: Plan, clusters: list[list[Injection]]) -> Check:
    """No step was impossible, and each was due in one cluster at least.

    Some may be over before: a scenario's clusters need not take equally long.
    """
    wrong = [
        f"cluster {number}: {each.step}: {each.error}"
        for number, injections in enumerate(clusters, start=1)
        for each in injections
        if each.error
    ]
    begun = [each.planned or each.step for injections in clusters for each in injections]
    for step in faults.steps:
        if not any(step is each for each in begun):
            wrong.append(f"{step}: it was never due")
    return Check(
        "every step of the fault plan was carried out",
        not wrong,
        "; ".join(wrong) or f"{len(begun)} times, in {len(clusters)} clusters",
    )
