"""Figure 10b: memory of the GCS while tasks are submitted, with and without flushing."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

import raytwin as ray
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    FigureSpec,
    Headline,
    Option,
    Outcome,
    Request,
    Scenario,
)
from raytwin.scenarios.workloads.programs import empty

TASKS = 50_000_000
"""Of the paper."""
WINDOW = 1_000
SETTLED_MAX = 0.6
"""At most so much of the tasks passes before memory is judged flat."""
GROWN_FROM = 0.2
"""Without flushing: after so much of the tasks growth is judged."""
SIM_PART = 5
FLAT = 1.10
GROWN = 1.5
SETTLE_S = 0.25
"""Longer than nodes hold back what only the GCS's tables need to know."""
LOOKS = 5
MB = 1e6


def run(request: Request) -> Outcome:
    """Submit the tasks with and without flushing; see `SCENARIO`."""
    outcome = Outcome(rows=[])
    tasks = _tasks(request)
    looks = -(-tasks // _step(request))
    request.progress.begin(f"fig10b on {request.backend}", 2 * looks)
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        for flushing in (True, False):
            options: dict[str, Any] = {"task_history": True, "seed": request.seed}
            if flushing:
                options["gcs_storage"] = Path(folder) / "gcs.sqlite3"
                options["gcs_memory_max"] = request.settings["memory_max"]
            nodes = request.nodes[0] if request.nodes else 1
            session: Any = ray.init(
                backend=request.backend, nodes=nodes, cpus_per_node=1, **options
            )
            try:
                _measure(request, outcome, session, flushing)
            finally:
                ray.shutdown()
            if flushing and request.backend == "local":
                disk = sum(file.stat().st_size for file in Path(folder).iterdir())
                outcome.metrics["disk_mb_with_flushing"] = disk / MB
    return outcome


def _tasks(request: Request) -> int:
    tasks: int = request.settings["tasks"]
    return tasks // SIM_PART if request.backend == "sim" else tasks


def _step(request: Request) -> int:
    """Return how many tasks are submitted between two looks."""
    return max(1, _tasks(request) // request.settings["looks"])


def _memory(request: Request, session: Any) -> float:
    """Return the GCS's memory in bytes: resident, or as counted in simulation."""
    if request.backend == "sim":
        return float(sum(tables.history.nbytes for tables in session.cluster.gcs_tables))
    session.cluster.poll()
    head = psutil.Process(session.cluster.pids["head"])
    # The least of some: a snapshot for the log is in memory for a moment.
    looks = []
    for _ in range(LOOKS):
        ray.sleep(request.settings["look_s"] / LOOKS)
        looks.append(head.memory_info().rss)
    return float(min(looks))


def _measure(request: Request, outcome: Outcome, session: Any, flushing: bool) -> None:
    tasks = _tasks(request)
    name = "with flushing" if flushing else "without flushing"
    step = _step(request)
    first = empty.remote()
    ray.get(first)
    oldest = first.binary()
    del first
    samples: list[tuple[int, float]] = []
    elapsed_s = 0.0
    done = 0
    while done < tasks:
        count = min(step, tasks - done)
        began_s = ray.now()
        for start in range(0, count, WINDOW):
            ray.get([empty.remote() for _ in range(min(WINDOW, count - start))])
        done += count
        elapsed_s += ray.now() - began_s
        # What nodes have to say of tasks is on its way for a while.
        ray.sleep(SETTLE_S)
        samples.append((done, _memory(request, session)))
        request.progress.advance()
    outcome.timeline = run_trace.kept()
    outcome.rows += [
        {"series": name, "tasks": at, "memory_mb": nbytes / MB} for at, nbytes in samples
    ]
    key = name.replace(" ", "_")
    begin = min(request.settings["settled_after"], int(SETTLED_MAX * tasks))
    settled = [nbytes for at, nbytes in samples if at >= begin]
    outcome.metrics[f"memory_mb_{key}"] = max(settled) / MB
    outcome.metrics[f"tasks_per_s_{key}"] = tasks / elapsed_s
    if flushing:
        outcome.checks.append(_flat(samples, begin))
        # A round trip through the same node comes after all that it had to log.
        ray.sleep(1.0)
        found = session.find_task(oldest)
        outcome.checks.append(
            Check("the oldest task is found on disk", found is not None, _told(found))
        )
    else:
        grown_from = int(GROWN_FROM * tasks)
        ratio = samples[-1][1] / next(nbytes for at, nbytes in samples if at >= grown_from)
        outcome.checks.append(
            Check(
                "without flushing memory grows",
                ratio >= GROWN,
                f"{ratio:.1f} times from {grown_from:,} tasks to {tasks:,}",
            )
        )


def _told(row: dict[str, Any] | None) -> str:
    """Return what the history says of a task, in words."""
    if row is None:
        return "there is no row"
    (name, *_), *_ = row["tasks"]
    nodes = ", ".join(str(node) for _, _, node in row["done"])
    return f"{name.lstrip('_')}, submitted by {row['owner']}, ended on node {nodes}"


def _flat(samples: list[tuple[int, float]], begin: int) -> Check:
    """Whether memory is never more than a tenth above what it reached `begin` tasks in.

    What it reached, and not what it was: rows come one by one and leave in batches. Of two samples
    in a row the lesser counts: a snapshot for the log stays in the process's memory until it works
    again.
    """
    first = next(index for index, (at, _) in enumerate(samples) if at >= begin)
    sizes = [nbytes for _, nbytes in samples]
    lesser = [min(pair) for pair in pairwise(sizes)]
    level, most = max(lesser[: first + 1]), max(lesser[first:])
    return Check(
        f"with flushing memory stays within 10 % of what it reached after {begin:,} tasks",
        most <= FLAT * level,
        f"{level / MB:.1f} MB at most by then, {most / MB:.1f} from then on",
    )


SCENARIO = Scenario(
    name="fig10b",
    title="Memory of the GCS with and without flushing",
    figure="Figure 10b",
    backends=("sim", "local"),
    not_on_ray="it flushes the history of tasks from the GCS, which Ray's GCS cannot",
    run=run,
    about=(
        "The paper submits 50 million empty tasks, one after another. Its GCS keeps what it"
        " knows of every task: without flushing memory grows linearly until the workload"
        " stalls, with flushing it is capped at a set level."
        "\n\n"
        "Here one driver calls an empty remote function that often, each call a task of its"
        f" own, and waits for the results after every {WINDOW:,}. The cluster keeps a history"
        " (`task_history`): a row for every task that finished. With flushing the GCS has a"
        " file (`gcs_storage`) and a limit for rows in memory (`gcs_memory_max`), and the head"
        " logs all it does there as well."
        "\n\n"
        "On real processes memory is the head process's resident set, the least of a few looks"
        " (`look_s`): a snapshot for the log is there for a moment; in simulation it is what"
        " the rows in memory take, as the GCS counts it, and fewer tasks are submitted."
    ),
    headline=Headline(
        "MB of the GCS at most with flushing, as part of what it has without",
        lambda metrics: metrics["memory_mb_with_flushing"] / metrics["memory_mb_without_flushing"],
    ),
    scaled=lambda p: f"{p['tasks']:,} of {TASKS:,} tasks",
    options=(
        Option("tasks", int, 500_000, 5_000_000, "empty tasks; a fifth of it on sim", minimum=100),
        Option("looks", int, 10, 60, "at the memory, each of half a second or more", minimum=5),
        Option("settled_after", int, 300_000, 500_000, "tasks before it is judged", minimum=1),
        Option("memory_max", int, 4_000_000, 16_000_000, "bytes of rows in memory", minimum=1_000),
        Option(
            "look_s", float, 0.25, 1.0, "seconds over which memory is looked at; the least counts"
        ),
    ),
    figures=(
        FigureSpec(
            title="Memory of the GCS by tasks submitted",
            x="tasks",
            y="memory_mb",
            x_label="tasks submitted",
            y_label="MB",
            series=("series",),
            published_shape="without flushing linear growth until it stalls; with it, capped",
        ),
    ),
)
