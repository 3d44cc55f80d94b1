"""Figure 10b: memory of the GCS while tasks are submitted, with and without flushing."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

import raytwin as ray
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
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
PAPER = "paper's cluster"
HOST = "one host"
WITH, WITHOUT = "with flushing", "without flushing"
AIM_PERCENT = 5.0
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
    clusters = [PAPER] if request.backend == "sim" else [HOST]
    if request.backend == "sim" and request.profile is not None:
        clusters.append(HOST)
    request.progress.begin(f"fig10b on {request.backend}", len(clusters) * 2 * looks)
    for where in clusters:
        with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
            for flushing in (True, False):
                session: Any = ray.init(**_cluster(request, where, flushing, Path(folder)))
                try:
                    _measure(request, outcome, session, where, flushing, where == clusters[0])
                finally:
                    ray.shutdown()
                if flushing and request.backend == "local":
                    disk = sum(file.stat().st_size for file in Path(folder).iterdir())
                    outcome.metrics["disk_mb_with_flushing"] = disk / MB
    return outcome


def _cluster(request: Request, where: str, flushing: bool, folder: Path) -> dict[str, Any]:
    """Return what a cluster is started with; its GCS flushes to a file in `folder`, or not."""
    nodes = request.nodes[0] if request.nodes else 1
    given: dict[str, Any] = {
        "backend": request.backend,
        "nodes": nodes,
        "cpus_per_node": 1,
        "seed": request.seed,
        "task_history": True,
    }
    if flushing:
        given["gcs_storage"] = folder / "gcs.sqlite3"
        given["gcs_memory_max"] = request.settings["memory_max"]
    if request.backend == "sim":
        given["profile"] = "paper" if where == PAPER else str(request.profile)
        given["nodes_per_host"] = 1 if where == PAPER else nodes
    return given


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


def _measure(
    request: Request, outcome: Outcome, session: Any, where: str, flushing: bool, main: bool
) -> None:
    """Submit the tasks on one cluster; the metrics are those of the `main` one."""
    tasks = _tasks(request)
    name = WITH if flushing else WITHOUT
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
    of_run = {"cluster": where, "series": name}
    outcome.rows += [{**of_run, "tasks": at, "memory_mb": nbytes / MB} for at, nbytes in samples]
    grown_from = int(GROWN_FROM * tasks)
    first_at, first_nbytes = next(sample for sample in samples if sample[0] >= grown_from)
    last_at, last_nbytes = samples[-1]
    # The last row has the figures of the whole run, so that a comparison counts each once.
    outcome.rows[-1] |= {
        "tasks_per_s": tasks / elapsed_s,
        "growth_bytes": None if flushing else (last_nbytes - first_nbytes) / (last_at - first_at),
    }
    begin = min(request.settings["settled_after"], int(SETTLED_MAX * tasks))
    if main:
        outcome.timeline = run_trace.kept()
        key = name.replace(" ", "_")
        settled = [nbytes for at, nbytes in samples if at >= begin]
        outcome.metrics[f"memory_mb_{key}"] = max(settled) / MB
        outcome.metrics[f"tasks_per_s_{key}"] = tasks / elapsed_s
    if flushing:
        outcome.checks.append(_flat(samples, begin, where))
        # A round trip through the same node comes after all that it had to log.
        ray.sleep(1.0)
        found = session.find_task(oldest)
        outcome.checks.append(
            Check(f"on {where}, the oldest task is found on disk", found is not None, _told(found))
        )
    else:
        ratio = last_nbytes / first_nbytes
        outcome.checks.append(
            Check(
                f"on {where}, without flushing memory grows",
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


def _flat(samples: list[tuple[int, float]], begin: int, where: str) -> Check:
    """Whether memory is never more than a tenth above what it reached `begin` tasks in.

    What it reached, and not what it was: rows come one by one and leave in batches. Of three
    samples in a row the median counts: a snapshot for the log stays in the process's memory until
    it works again, and a resident set is some percent more or less at the next look.
    """
    first = next(index for index, (at, _) in enumerate(samples) if at >= begin)
    sizes = [nbytes for _, nbytes in samples]
    level = max(sizes[: first + 1])
    most = max(map(statistics.median, zip(*(sizes[first + i :] for i in range(3)), strict=False)))
    return Check(
        f"on {where}, with flushing memory stays within 10 % of what it reached after"
        f" {begin:,} tasks",
        most <= FLAT * level,
        f"{level / MB:.1f} MB at most by then, {most / MB:.1f} from then on",
    )


def _compare(column: str) -> Compare:
    return Compare(
        on=("series",),
        column=column,
        predicted={"cluster": HOST},
        measured={"cluster": HOST},
        aim_percent=AIM_PERCENT,
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
        " the rows in memory take, as the GCS counts it, and fewer tasks are submitted. So what is"
        " compared is by how much memory grows with each task without flushing, and throughput;"
        " memory with flushing is not, since the simulation has none of the interpreter, the log"
        " and the database, which most of it is on real processes."
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
            series=("cluster", "series"),
            published_shape="without flushing linear growth until it stalls; with it, capped",
        ),
        FigureSpec(
            title="Growth of the GCS's memory with each task, without flushing",
            x="cluster",
            y="growth_bytes",
            x_label="",
            y_label="memory for each task",
            y_unit="bytes",
            compare=_compare("growth_bytes"),
        ),
        FigureSpec(
            title="Tasks a second, with and without flushing",
            x="series",
            y="tasks_per_s",
            x_label="",
            y_label="tasks/s",
            series=("cluster",),
            compare=_compare("tasks_per_s"),
        ),
    ),
)
