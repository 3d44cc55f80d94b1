"""Many seeds of the fuzz, on several processes, which end with what asks for the seeds.

Each process has a fixed share of the seeds, of which it works off one after the other. It is
killed when nobody wants more of them, and by the kernel when its parent dies. Ctrl-C at the
terminal is the parent's alone.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.run.case_run import Report, run_case
from raytwin.runtime.processes.spawn.zygote import end_with


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, lossless: bool = False
) -> Generator[Report, None, None]:
    """Yield what became of each seed, in their order. RuntimeError if a process of it ends.

    To be closed if not all of it is wanted: no process is left after that.
    """
    if jobs == 1:
        for seed in seeds:
            yield run_case(draw_case(seed, lossless))
        return
    shares = [seeds[at::jobs] for at in range(min(jobs, len(seeds)))]
    with _running(shares, lossless) as workers:
        found: dict[Connection, deque[Report]] = {pipe: deque() for pipe in workers}
        turns = list(workers)
        for at in range(len(seeds)):
            mine = turns[at % len(turns)]
            while not found[mine]:
                # Also what is not due yet: who waits for a reader does nothing.
                for pipe in wait(list(workers)):
                    assert isinstance(pipe, Connection)
                    try:
                        found[pipe].append(pipe.recv())
                    except EOFError:
                        process = workers.pop(pipe)
                        process.join()
                        if process.exitcode:
                            raise RuntimeError(
                                f"a process of the fuzz has ended: exit code {process.exitcode}"
                            ) from None
            yield found[mine].popleft()


@contextmanager
def _running(
    shares: Sequence[Sequence[int]], lossless: bool
) -> Iterator[dict[Connection, BaseProcess]]:
    """Run each share in a process, whose reports come out of its pipe; kill them at the end."""
    # Forked, so that greenlets and SimPy need not be loaded again.
    context = multiprocessing.get_context("fork")
    workers: dict[Connection, BaseProcess] = {}
    started: list[BaseProcess] = []
    try:
        # Or one of them could reach a process before it has its own way with them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for share in shares:
                results, reports = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(
                    target=_work, args=(share, lossless, reports, os.getpid(), before), daemon=True
                )
                process.start()
                started.append(process)
                reports.close()  # or its end would not be seen
                workers[results] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield workers
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.join()


def _work(
    seeds: Sequence[int], lossless: bool, reports: Connection, parent_pid: int, mask: set[Any]
) -> None:
    end_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for seed in seeds:
        reports.send(run_case(draw_case(seed, lossless)))


def write_failure(report: Report, directory: Path) -> Path:
    """Write a failing seed with its plan and what it violated; return the file."""
    case = report.case
    data: dict[str, Any] = {
        "seed": case.seed,
        "lossless": case.lossless,
        "nodes": case.nodes,
        "cpus_per_node": case.cpus,
        "object_store_memory": case.store_bytes,
        **case.gcs,
        "tasks": case.program.tasks,
        "failures": report.failures,
        **case.plan.to_data(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"fuzz-{case.seed}.json"
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path
