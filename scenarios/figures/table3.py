"""Table 3: how many states a second an embedded policy evaluates, and a web service."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import raytwin as ray
from raytwin.scenarios.applications.serving import (
    FULLY_CONNECTED,
    RESIDUAL_NETWORK,
    STATES,
    Asked,
    Workload,
    ask_all,
    largest_error,
    start,
    states_per_s,
)
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
    FigureSpec,
    Headline,
    Metrics,
    Option,
    Outcome,
    PublishedPoint,
    Ratio,
    Request,
    Scenario,
)
from raytwin.scenarios.peers import http_serving, ray_serving, times_alone

Ask = Callable[[Workload, int], list[Asked]]
"""Has every client ask for so many batches at the same time."""
Serving = Callable[[], AbstractContextManager[dict[str, Ask]]]
"""Starts what serves and its clients, and ends them; gives what asks it, by system."""

PAPER = "paper's machine"
HOST = "this machine"
ACTOR = "actor"
WORKLOADS = (RESIDUAL_NETWORK, FULLY_CONNECTED)
NAMES = {
    RESIDUAL_NETWORK: "4 KB, model of 10 ms",
    FULLY_CONNECTED: "100 KB, model of 5 ms",
}
"""As in the rows' column ``workload``."""
PUBLISHED: dict[tuple[str, Workload], tuple[float, float]] = {
    ("Clipper", RESIDUAL_NETWORK): (4400.0, 15.0),
    ("Clipper", FULLY_CONNECTED): (290.0, 1.3),
    ("Ray", RESIDUAL_NETWORK): (6200.0, 21.0),
    ("Ray", FULLY_CONNECTED): (6900.0, 150.0),
}
"""States a second and their spread, by system and workload: OSDI 2018, table 3."""
STANDS_FOR = {"Clipper": http_serving.JSON, "Ray": ACTOR}
"""The series of rows that a published system belongs to."""
WITHIN = 0.1
"""How far a prediction may be off where the model's time is nearly all there is."""
ALLOWED = 1.0 + 1e-6
"""Of the rate that the model's time allows: more than rounding means that it was not served."""


def run(request: Request) -> Outcome:
    """Serve both policies by every system; see `SCENARIO`."""
    outcome = Outcome(rows=[])
    errors: list[float] = []
    for series, repeats, systems in _plan(request, outcome):
        steps = repeats * len(systems)
        request.progress.begin(f"table3 on {request.backend}, {series}", steps)
        for repeat in range(repeats):
            for serving in systems:
                with serving() as found:
                    for system, ask in found.items():
                        for workload in WORKLOADS:
                            asked = _measured(ask, workload, request.settings["round_s"])
                            errors.append(largest_error(asked, workload))
                            outcome.rows.append(_row(series, system, workload, asked, repeat))
                    if ACTOR in found and repeat == 0:
                        outcome.timeline += run_trace.kept(f"{series}:")
                request.progress.advance()
    _judge(request, outcome, max(errors))
    return outcome


def _plan(request: Request, outcome: Outcome) -> Iterator[tuple[str, int, list[Serving]]]:
    """Yield the series of the request: its name, its repeats and its systems."""
    clients, seed = request.settings["clients"], request.seed
    if request.backend == "sim":
        given = {"backend": "sim", "profile": "paper", "seed": seed}
        yield PAPER, 1, [partial(_actor, clients, given)]
        if request.profile is not None:
            given = {"backend": "sim", "profile": str(request.profile), "seed": seed}
            read_s = _read_s()
            outcome.findings.append(
                f"On this machine reading a batch of 100 KB states takes"
                f" {1e3 * read_s[FULLY_CONNECTED]:.2f} ms, as measured by one process alone before"
                " the prediction."
            )
            yield HOST, 1, [partial(_actor, clients, given, read_s)]
        return
    systems: list[Serving] = [partial(_actor, clients, {"backend": request.backend, "seed": seed})]
    for peer in request.settings["peers"]:
        lacking = []
        if peer == "fastapi":
            lacking = [http_serving.missing()]
            serving: Serving = partial(http_serving.serving, clients)
        elif peer == "ray":
            lacking = [ray_serving.missing(system) for system in ray_serving.NEEDED]
            serving = partial(ray_serving.serving, clients)
        for line in filter(None, lacking):
            request.progress.say(line)
            outcome.findings.append(f"{line}.")
        if not all(lacking):
            systems.append(serving)
    yield HOST, request.settings["repeats"], systems


def _read_s() -> dict[Workload, float]:
    """Return what one process alone takes on this machine to read a batch of each workload."""
    return {
        workload: times_alone.measured("policy_s", STATES, workload.state_bytes)[0]
        for workload in WORKLOADS
    }


def _served(read_s: float, model_s: float) -> None:
    """Let the time of a batch pass in virtual time: a core reads it, and the model leaves the cores
    alone."""
    ray.compute(read_s)
    ray.sleep(model_s)


@contextmanager
def _actor(
    clients: int, given: dict[str, Any], read_s: Mapping[Workload, float] | None = None
) -> Iterator[dict[str, Ask]]:
    """Start a cluster of one node, with a CPU for the actor and for each client.

    With `read_s` reading a batch takes so many seconds; None: what it takes, or, in virtual time,
    none.
    """
    ray.init(nodes=1, cpus_per_node=clients + 1, **given)
    policies: dict[Workload, Any] = {}

    def ask(workload: Workload, batches: int) -> list[Asked]:
        if workload not in policies:
            policies.clear()
            pass_time = None if read_s is None else partial(_served, read_s[workload])
            policies[workload] = start(ray, workload, pass_time)
        return ask_all(ray, policies[workload], workload, clients, batches)

    try:
        yield {ACTOR: ask}
    finally:
        ray.shutdown()


def _measured(ask: Ask, workload: Workload, round_s: float) -> list[Asked]:
    """Return what the clients saw in about `round_s` seconds, and in one batch each at least.

    A first batch brings up what serves; where it takes as long as a round it is the round.
    """
    first = ask(workload, 1)
    took_s = STATES * len(first) / states_per_s(first)
    return first if took_s >= round_s else ask(workload, max(1, round(round_s / took_s)))


def _row(
    series: str, system: str, workload: Workload, asked: list[Asked], repeat: int
) -> dict[str, Any]:
    batches = sum(each.batches for each in asked)
    rate = states_per_s(asked)
    return {
        "series": series,
        "system": system,
        "workload": NAMES[workload],
        "states_per_s": rate,
        "state_bytes": workload.state_bytes,
        "model_ms": 1e3 * workload.model_s,
        "clients": len(asked),
        "batches": batches,
        "elapsed_s": STATES * batches / rate,
        "repeat": repeat,
    }


# -- what must hold ----------------------------------------------------------------


def _rates(outcome: Outcome, system: str, workload: Workload, series: str) -> list[float]:
    """Return a system's rates, in the order of the repeats."""
    wanted = series, system, NAMES[workload]
    return [
        r["states_per_s"]
        for r in outcome.rows
        if (r["series"], r["system"], r["workload"]) == wanted
    ]


def _slug(system: str) -> str:
    """Return a system's name as it is in names of metrics."""
    return system.lower().replace(",", "").replace(" ", "_")


def _judge(request: Request, outcome: Outcome, error: float) -> None:
    series = PAPER if request.backend == "sim" else HOST
    systems = list(dict.fromkeys(r["system"] for r in outcome.rows if r["series"] == series))
    for system in systems:
        name = _slug(system)
        for workload in WORKLOADS:
            kb = workload.state_bytes // 1000
            rate = statistics.median(_rates(outcome, system, workload, series))
            outcome.metrics[f"states_per_s_{name}_{kb}_kb"] = rate
    outcome.checks.append(
        Check(
            "every client got the actions for its own states, from every system",
            error == 0.0,
            f"largest error of an action: {error:g}",
            under_faults=True,
        )
    )
    share, row = max(
        ((r["states_per_s"] * r["model_ms"] / 1e3 / STATES, r) for r in outcome.rows),
        key=lambda each: each[0],
    )
    outcome.checks.append(
        Check(
            "nothing is served faster than the model evaluates it",
            share <= ALLOWED,
            f"at most {share:.1%} of that rate, by {row['system']} with {row['workload']}",
        )
    )
    if series == PAPER:
        _judge_prediction(outcome)
    else:
        _judge_peers(request, outcome, systems)


def _judge_prediction(outcome: Outcome) -> None:
    for workload in WORKLOADS:
        rate = _rates(outcome, ACTOR, workload, PAPER)[0]
        published, spread = PUBLISHED["Ray", workload]
        off = rate / published - 1
        what = f"{published:,.0f} ± {spread:,.0f} states/s of {workload.state_bytes // 1000} KB"
        detail = f"{rate:,.0f} predicted, {off:+.1%}"
        if workload is RESIDUAL_NETWORK:
            # Its model takes nearly all of the time, so there is not much to be wrong about.
            outcome.checks.append(
                Check(f"the published {what}, within {WITHIN:.0%}", abs(off) <= WITHIN, detail)
            )
        else:
            outcome.checks.append(
                Check(f"the published {what} are reached", rate >= published, detail)
            )
            taken_ms = 1e3 * STATES / published
            outcome.findings.append(
                f"The prediction misses the published {what}: {detail}. These imply"
                f" {taken_ms:.1f} ms for a batch, of which the model takes"
                f" {1e3 * workload.model_s:g}; the rest, for {STATES * workload.state_bytes:,}"
                " bytes, is more than a copy in memory costs, and what it was is not published."
                " Nothing was fitted to it."
            )


def _judge_peers(request: Request, outcome: Outcome, systems: list[str]) -> None:
    """Compare the actor with the peers; how fast Ray is beside them is a finding, not a check."""
    small, large = WORKLOADS
    for system in systems:
        if system == ACTOR:
            continue
        ratios = {}
        for workload in WORKLOADS:
            pairs = zip(
                _rates(outcome, ACTOR, workload, HOST),
                _rates(outcome, system, workload, HOST),
                strict=True,
            )
            ratios[workload] = [ours / theirs for ours, theirs in pairs]
        outcome.findings.append(
            f"The actor serves {_words(ratios[small])} as many states of 4 KB as {system}, and"
            f" {_words(ratios[large])} as many of 100 KB{_as_published(system)}."
        )
        for workload, found in ratios.items():
            kb = workload.state_bytes // 1000
            name = _slug(system)
            outcome.metrics[f"actor_to_{name}_{kb}_kb"] = statistics.median(found)
            if system == http_serving.JSON and request.backend != "ray":
                outcome.checks.append(
                    Check(
                        f"the actor serves more states of {kb} KB than the web service with JSON,"
                        " as it did than Clipper",
                        statistics.median(found) > 1.0,
                        f"{_words(found)} as many; published:"
                        f" {_published_ratio(workload):.1f} times",
                    )
                )
        if system == http_serving.JSON and request.backend != "ray":
            kept = {
                each: statistics.median(_rates(outcome, each, large, HOST))
                / statistics.median(_rates(outcome, each, small, HOST))
                for each in (ACTOR, system)
            }
            outcome.checks.append(
                Check(
                    "larger states cost the web service more of its rate than the actor",
                    kept[ACTOR] > kept[system],
                    f"with 100 KB for 4 KB the actor has {kept[ACTOR]:.2f} times its rate, the"
                    f" service {kept[system]:.3f} times; published:"
                    f" {PUBLISHED['Ray', large][0] / PUBLISHED['Ray', small][0]:.2f} and"
                    f" {PUBLISHED['Clipper', large][0] / PUBLISHED['Clipper', small][0]:.3f}",
                )
            )


def _published_ratio(workload: Workload) -> float:
    return PUBLISHED["Ray", workload][0] / PUBLISHED["Clipper", workload][0]


def _better(metrics: Metrics, workload: Workload) -> float:
    """Return how many times the web service's states a second the actor serves."""
    kb = workload.state_bytes // 1000
    return metrics[f"actor_to_{_slug(http_serving.JSON)}_{kb}_kb"]


def _why(metrics: Metrics, workload: Workload) -> str:
    """Return what a batch takes on either side, beside its model."""
    kb = workload.state_bytes // 1000
    actor_ms, service_ms = (
        1e3 * STATES / metrics[f"states_per_s_{_slug(system)}_{kb}_kb"]
        for system in (ACTOR, http_serving.JSON)
    )
    return (
        f"a batch takes the actor {actor_ms:.1f} ms and the web service {service_ms:.1f} ms, of"
        f" which the model takes {1e3 * workload.model_s:g} ms of both: what remains is the way of"
        f" {STATES * workload.state_bytes / 1e3:,.0f} KB, on cores that the clients share."
    )


def _as_published(system: str) -> str:
    if system != http_serving.JSON:
        return ""
    small, large = (_published_ratio(workload) for workload in WORKLOADS)
    return f"; the paper had {small:.1f} and {large:.1f} times of Clipper, for which it stands"


def _words(ratios: list[float]) -> str:
    """Return a ratio with its spread over the repeats."""
    low, high = min(ratios), max(ratios)
    spread = f" ({low:.2f}–{high:.2f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}{spread} times"


def _figure(title: str, where: str, compare: Compare | None = None, note: str = "") -> FigureSpec:
    return FigureSpec(
        title=title,
        x="workload",
        y="states_per_s",
        x_label="state, in batches of 64",
        y_label="states/s",
        series=("system",),
        where={"series": where},
        y_scale="log",
        published=tuple(
            PublishedPoint(
                NAMES[workload],
                rate,
                note=f"± {spread:g}, on a p3.8xlarge: OSDI 2018, table 3",
                series=STANDS_FOR[system],
                system=system,
            )
            for (system, workload), (rate, spread) in PUBLISHED.items()
        ),
        compare=compare,
        note=note,
    )


SCENARIO = Scenario(
    name="table3",
    time_bodies=lambda settings: _read_s(),
    title="Embedded serving: states a second",
    figure="Table 3",
    backends=("sim", "local", "ray"),
    cluster_sizes=(1,),
    run=run,
    about=(
        "An actor evaluates a policy for batches of 64 states that clients of the same program"
        " send it: states of 4 KB for a residual network that takes 10 ms, and of 100 KB for a"
        " small fully connected one that takes 5 ms. The paper compared Ray's actor with Clipper,"
        " a serving system with a REST interface, on one machine."
        "\n\n"
        "The program is `scenarios/applications/serving.py`. A model reads its states and then"
        " lets its time pass as on an accelerator, which leaves the cores to the others; it takes"
        " one batch at a time, whoever serves it. Two clients, processes of their own, ask for one"
        " batch after the other. The number of clients is not published: with two the server never"
        " waits for one."
        "\n\n"
        "Clipper is no longer kept up, so a web service of the same model stands for it, FastAPI on"
        " uvicorn: with states as JSON, which is what a REST interface means, and as raw bytes,"
        " which is the best that HTTP can do. Its clients use one connection each that stays open,"
        " and orjson. On `local` the actor and its peers run in turn, each started afresh in each"
        " repeat. With `--set peers=fastapi,ray` the same actor on Ray, and a deployment of Ray"
        " Serve that is called by its handle, run as well, as far as they are installed."
        "\n\n"
        "In simulation the actor runs alone, with the profile 'paper': what a peer costs is"
        " measured, or it is not there. There a batch takes its model's time; with a profile of"
        " this machine also what one process alone is measured to take to read the batch."
    ),
    headline=Headline(
        "states/s of 4 KB, with a model of 10 ms for 64 of them",
        lambda metrics: metrics["states_per_s_actor_4_kb"],
        PublishedPoint("4 KB", 6_200.0, note="6,200 ± 21, table 3"),
        peer=lambda metrics: metrics[f"states_per_s_{_slug(http_serving.JSON)}_4_kb"],
        peer_name=http_serving.JSON,
    ),
    ratios=tuple(
        Ratio(
            f"states/s of {workload.state_bytes // 1000} KB, against a web service with JSON, which"
            " stands for Clipper",
            PublishedPoint(NAMES[workload], _published_ratio(workload), note="table 3"),
            partial(_better, workload=workload),
            partial(_why, workload=workload),
        )
        for workload in WORKLOADS
    ),
    options=(
        Option("repeats", int, 2, 5, "measurements of each system on local", 1),
        Option("round_s", float, 0.5, 2.0, "seconds of a measurement, about", 0.01),
        Option("clients", int, 2, 2, "clients that ask at the same time", 1),
        Option(
            "peers", str, ("fastapi",), ("fastapi", "ray"), "what else is measured on local",
            choices=("fastapi", "ray", "none"), many=True,
        ),
    ),
    figures=(
        _figure("States a second on the paper's machine", PAPER),
        _figure(
            "States a second on this machine: predicted, measured, and the peers",
            HOST,
            Compare(
                on=("workload",),
                column="states_per_s",
                predicted={"series": HOST, "system": ACTOR},
                measured={"series": HOST, "system": ACTOR},
                aim_percent=5,
            ),
            "A web service stands for Clipper. The model's time passes here as it did there, so it"
            " bounds the rates of both machines alike.",
        ),
    ),
)  # fmt: skip
