"""Runs many seeds of the fuzz on several processes.

The kernel kills the processes when their parent dies; only the parent handles Ctrl-C.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.run.case_run import Report, run_case
from raytwin.runtime.processes.spawn.zygote import die_with


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, lossless: bool = False
) -> Generator[Report, None, None]:
    """Yield the report of each seed, in order. Raises RuntimeError if one of the processes ends.

    A caller that does not need all reports closes the generator, which ends the processes.
    """
    if jobs == 1:
        for seed in seeds:
            yield _run(seed, lossless)
        return
    # Forked, so that greenlets and SimPy need not be loaded again.
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs, fork, _begin, (os.getpid(),))
    pending: deque[Future[Report]] = deque()
    try:
        for seed in seeds:
            pending.append(pool.submit(_run, seed, lossless))
            if len(pending) > 4 * jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin(parent_pid: int) -> None:
    die_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(seed: int, lossless: bool) -> Report:
    return run_case(draw_case(seed, lossless))


def write_failure(report: Report, directory: Path) -> Path:
    """Write a failing seed with its plan and its violations; return the file."""
    case = report.case
    data: dict[str, Any] = {
        "seed": case.seed,
        "lossless": case.lossless,
        "nodes": case.nodes,
        "cpus_per_node": case.cpus,
        "object_store_memory": case.store_bytes,
        "direct_after": case.direct_after,
        **case.gcs,
        "tasks": case.program.tasks,
        "failures": report.failures,
        **case.plan.to_data(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"fuzz-{case.seed}.json"
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path
