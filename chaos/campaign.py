"""Many seeds of the fuzz, on several processes."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from chaos.cases import draw_case
from chaos.fuzz import Report, run_case

CHUNK = 10
"""Seeds that a process is given at a time."""


def run_seeds(seeds: Sequence[int], jobs: int = 1, lossless: bool = False) -> Iterator[Report]:
    """Yield what became of each seed, in their order."""
    if jobs == 1:
        for seed in seeds:
            yield run_case(draw_case(seed, lossless))
        return
    # Forked, so that greenlets and SimPy need not be loaded again.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        parts = [(seeds[at : at + CHUNK], lossless) for at in range(0, len(seeds), CHUNK)]
        for reports in pool.map(_run_part, parts):
            yield from reports


def _run_part(part: tuple[Sequence[int], bool]) -> list[Report]:
    seeds, lossless = part
    return [run_case(draw_case(seed, lossless)) for seed in seeds]


def write_failure(report: Report, directory: Path) -> Path:
    """Write a failing seed with its plan and what it violated; return the file."""
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
