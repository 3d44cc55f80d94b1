"""Figure 9: how fast one client writes to the object store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import raytwin as ray
from raytwin.runtime.store.arena_writer import Copier
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
    FigureSpec,
    Headline,
    Option,
    Outcome,
    PublishedPoint,
    Request,
    Scenario,
)
from raytwin.scenarios.workloads.programs import write
from raytwin.simulator.machine.costs import load_profile

SIZES_QUICK = (1_000, 10_000, 100_000, 250_000, 1_000_000, 10_000_000, 64_000_000)
SIZES_FULL = (*SIZES_QUICK, 250_000_000, 1_000_000_000)
THREADS = (1, 2, 4, 8, 16)
PAPER = "paper's machine"
HOST = "this machine"
PAPER_CORES = 16
BYTES_PER_REPEAT = 128_000_000
"""Written at least in each repeat, as far as `PUTS_MAX` allows."""
PUTS_MAX = 1_000
SHARE_OF_MEMCPY = 0.5
PUBLISHED_GB_PER_S = 15.0
PUBLISHED_IOPS = 18_000.0
CROSSOVER_BYTES = 500_000
"""From here on the paper's client copies with `CROSSOVER_THREADS`, below with one."""
CROSSOVER_THREADS = 8
CROSSOVER_FACTOR = 2.0
"""How far off the crossover may be: twice as large or small."""
LARGE_BYTES, SMALL_BYTES = 10_000_000, 10_000
"""Sizes that published rates of large and of small objects are compared at, and beyond."""
RAY_CHOOSES = 0
"""For the number of copying threads on Ray, which has no option for it."""
RAY_STORE_BYTES = 1 << 30
"""Ray frees dropped objects later than the next put, and would else spill them to disk."""
MISSED = 1.25
"""A predicted rate that is off the published one by more is said to miss it."""


def run(request: Request) -> Outcome:
    """Write objects of every size with every number of threads; see `SCENARIO`."""
    outcome = Outcome(rows=[])
    series = [PAPER] if request.backend == "sim" else [HOST]
    if request.backend == "sim" and request.profile is not None:
        series.append(HOST)
    sizes, threads = request.settings["sizes"], request.settings["threads"]
    if request.backend == "ray":
        threads = (RAY_CHOOSES,)
    # Clusters differ more than repeats on one, so each repeat has its own; in virtual time all are
    # alike.
    repeats = 1 if request.backend == "sim" else request.settings["repeats"]
    steps = len(series) * repeats * len(sizes) * len(threads)
    request.progress.begin(f"fig9 on {request.backend}", steps)
    for where in series:
        for repeat in range(repeats):
            for count in threads:
                _measure(request, outcome, where, count, repeat)
    if request.backend == "ray":
        _tell_of_ray(outcome, sorted(sizes))
    else:
        _judge(request, outcome, series[0])
    return outcome


def _measure(request: Request, outcome: Outcome, where: str, threads: int, repeat: int) -> None:
    sizes = request.settings["sizes"]
    given: dict[str, Any] = {
        "nodes": 1,
        "seed": request.seed,
        "store_copy_threads": threads,
        # For two of the largest.
        "object_store_memory": max(1 << 28, int(2.2 * max(sizes))),
    }
    profile = "paper" if where == PAPER else str(request.profile)
    if request.backend == "ray":
        del given["store_copy_threads"]
        given["object_store_memory"] = max(RAY_STORE_BYTES, given["object_store_memory"])
    if request.backend != "sim":
        given |= {"backend": request.backend}
    else:
        given |= {"backend": "sim", "profile": profile}
        if where == PAPER:
            given["cores_per_host"] = PAPER_CORES
    ray.init(**given)
    try:
        for size in sizes:
            value = ray.Blob(size)
            puts = min(PUTS_MAX, max(1, BYTES_PER_REPEAT // size))
            # Twice before: the store's memory has been touched, then mapped, the worker is up.
            for _ in range(2):
                write(value, puts)
            elapsed_s = write(value, puts)
            limit_s = (
                load_profile(profile).copy_s(size, threads) * puts
                if request.backend == "sim"
                else _memcpy_s(size, threads or 1, puts)
            )
            for what, took_s in (("put", elapsed_s), ("memcpy", limit_s)):
                outcome.rows.append(
                    {
                        "series": where,
                        "what": what,
                        "size_bytes": size,
                        "threads": threads if what == "put" else threads or 1,
                        "gb_per_s": size * puts / took_s / 1e9,
                        "iops": puts / took_s,
                        "repeat": repeat,
                    }
                )
            request.progress.advance()
        if not repeat:
            outcome.timeline += run_trace.kept(f"{where}, {threads} threads:")
    finally:
        ray.shutdown()


_arrays: dict[int, tuple[Any, Any]] = {}


def _memcpy_s(size: int, threads: int, times: int) -> float:
    """Return how long so many copies between two arrays in memory take."""
    if size not in _arrays:
        _arrays.clear()
        _arrays[size] = np.ones(size, np.uint8), np.ones(size, np.uint8)
    source, target = (array.data for array in _arrays[size])
    copier = Copier(threads)
    try:
        copier.copy(target, source)
        started_s = time.perf_counter()
        for _ in range(times):
            copier.copy(target, source)
        return time.perf_counter() - started_s
    finally:
        copier.close()


def _mean(outcome: Outcome, what: str, series: str, size: int, threads: int, column: str) -> float:
    wanted = (what, series, size, threads)
    return statistics.fmean(
        r[column]
        for r in outcome.rows
        if (r["what"], r["series"], r["size_bytes"], r["threads"]) == wanted
    )


def _share(outcome: Outcome, series: str, size: int, threads: int) -> float:
    """Return the part of a copy's speed that a put reaches: the median of pairs, made in turn."""
    rates: dict[int, dict[str, float]] = {}
    for r in outcome.rows:
        if (r["series"], r["size_bytes"], r["threads"]) == (series, size, threads):
            rates.setdefault(r["repeat"], {})[r["what"]] = r["gb_per_s"]
    return statistics.median(pair["put"] / pair["memcpy"] for pair in rates.values())


def _tell_of_ray(outcome: Outcome, sizes: list[int]) -> None:
    """Add the metrics of Ray, and what they come to."""
    for size in sizes:
        for column in ("gb_per_s", "iops"):
            name = f"put_{column}_{size}_bytes"
            outcome.metrics[name] = _mean(outcome, "put", HOST, size, RAY_CHOOSES, column)
    largest, smallest = sizes[-1], sizes[0]
    copy = _mean(outcome, "memcpy", HOST, largest, 1, "gb_per_s")
    outcome.checks.append(
        Check(
            "the last object of every repeat was read back",
            len(outcome.metrics) == 2 * len(sizes),
            f"{len(outcome.rows) // 2} repeats",
            under_faults=True,
        )
    )
    outcome.findings.append(
        f"On Ray one client writes {outcome.metrics[f'put_gb_per_s_{largest}_bytes']:.1f} GB/s in"
        f" objects of {largest:,} bytes, where a copy in memory by one thread reaches"
        f" {copy:.1f} GB/s, and {outcome.metrics[f'put_iops_{smallest}_bytes']:,.0f} objects/s of"
        f" {smallest:,} bytes."
    )


def _judge(request: Request, outcome: Outcome, series: str) -> None:
    sizes, threads = sorted(request.settings["sizes"]), request.settings["threads"]

    def rate(what: str, size: int, count: int, column: str = "gb_per_s") -> float:
        return _mean(outcome, what, series, size, count, column)

    largest, smallest = sizes[-1], sizes[0]
    for size in sizes:
        for count in threads:
            name = f"put_gb_per_s_{size}_bytes_{count}_threads"
            outcome.metrics[name] = rate("put", size, count)
    best = max(threads, key=lambda count: rate("put", largest, count))
    fastest = rate("put", largest, best)
    memcpy = max(rate("memcpy", largest, count) for count in threads)
    small = max(rate("put", smallest, count, "iops") for count in threads)
    outcome.metrics |= {
        "largest_gb_per_s": fastest,
        "memcpy_gb_per_s": memcpy,
        "smallest_iops": small,
    }
    if series == HOST:
        # A simulated copy in memory costs what the profile says, and so does a put.
        share, at = max((_share(outcome, series, largest, count), count) for count in threads)
        outcome.checks.append(
            Check(
                f"a put of {largest:,} bytes reaches half of what a copy in memory does",
                share >= SHARE_OF_MEMCPY,
                f"{share:.0%} of a copy by as many threads, {at}, right after it",
            )
        )
    low, high = rate("put", smallest, threads[0]), rate("put", largest, threads[0])
    outcome.checks.append(
        Check(
            "large objects are limited by memory, small ones by what each put costs",
            high >= 10 * low,
            f"{high:.2f} GB/s at {largest:,} bytes, {low:.3f} GB/s at {smallest:,} bytes",
        )
    )
    if series == PAPER:
        _compare(outcome, sizes, threads, rate)
    outcome.findings.append(
        f"On {series} one client writes {fastest:.1f} GB/s in objects of {largest:,} bytes"
        f" ({best} threads), where a copy in memory reaches {memcpy:.1f} GB/s, and"
        f" {small:,.0f} objects/s of {smallest:,} bytes."
    )


def _compare(
    outcome: Outcome, sizes: list[int], threads: Sequence[int], rate: Callable[..., float]
) -> None:
    """Hold what the profile predicts against what is published, as far as it was run."""
    profile = load_profile("paper")
    best = [
        ("GB/s of large objects", PUBLISHED_GB_PER_S, "gb_per_s", sizes[-1]),
        ("objects/s of small ones", PUBLISHED_IOPS, "iops", sizes[0]),
    ]
    for what, published, column, size in best:
        if size < LARGE_BYTES if column == "gb_per_s" else size > SMALL_BYTES:
            continue
        found = max(rate("put", size, count, column) for count in threads)
        outcome.checks.append(
            Check(
                f"the published {published:,.0f} {what} are reached",
                found >= published,
                f"{found:,.1f} predicted at {size:,} bytes",
            )
        )
        if max(found / published, published / found) > MISSED:
            outcome.findings.append(
                f"The prediction of {what} misses what is published: {found:,.1f} against"
                f" {published:,.0f}, {found / published:.1f} times as much. The profile's costs"
                f" of a put ({1e6 * profile.call_s['put']:g} us of the client, copies at"
                f" {profile.memory_bandwidth / 1e9:g} GB/s by one thread and"
                f" {profile.memory_bandwidth_all / 1e9:g} GB/s by many) are assumptions that"
                " were not fitted to this figure."
            )
    if not {1, CROSSOVER_THREADS} <= set(threads):
        return
    below = [size for size in sizes if size * CROSSOVER_FACTOR <= CROSSOVER_BYTES]
    above = [size for size in sizes if size >= CROSSOVER_FACTOR * CROSSOVER_BYTES]
    for names, right, sign in ((below, 1, "up to"), (above, CROSSOVER_THREADS, "from")):
        if not names:
            continue
        gains = [rate("put", s, CROSSOVER_THREADS) / rate("put", s, 1) for s in names]
        edge = names[-1] if right == 1 else names[0]
        ok = max(gains) <= 1.0 + 1e-6 if right == 1 else min(gains) > 1.0
        outcome.checks.append(
            Check(
                f"{'one thread is' if right == 1 else f'{right} threads are'} the better choice"
                f" {sign} {edge:,} bytes, as published ({CROSSOVER_BYTES:,} within twice)",
                ok,
                f"with {CROSSOVER_THREADS}"
                + ", ".join(
                    f" {gain:.2f} times as fast at {size:,}"
                    for size, gain in zip(names, gains, strict=True)
                ),
            )
        )


def _figure(title: str, where: str, y: str, label: str, point: PublishedPoint) -> FigureSpec:
    compare = Compare(
        on=("threads", "size_bytes"),
        column=y,
        predicted={"series": HOST, "what": "put"},
        measured={"series": HOST, "what": "put"},
        aim_percent=10,
    )
    return FigureSpec(
        title=title,
        x="size_bytes",
        y=y,
        x_label="object size",
        y_label=label,
        series=("what",),
        facet="threads",
        # The limit beside it: a copy in memory, by one thread and by several.
        where={"series": where},
        x_scale="log",
        y_scale="log",
        x_unit="bytes",
        published=(point,),
        published_shape="on 16 cores, 8 threads are best above 0.5 MB, and one below",
        compare=compare if where == HOST and y == "gb_per_s" else None,  # the same writes once
    )


_RATE = PublishedPoint(
    1e9, PUBLISHED_GB_PER_S, "at_least", "for large objects, on an m4.4xlarge with 16 cores"
)
_IOPS = PublishedPoint(1e3, PUBLISHED_IOPS, "value", "for small objects, on the same machine")

SCENARIO = Scenario(
    name="fig9",
    title="Object store: writes of one client",
    figure="Figure 9",
    backends=("sim", "local", "ray"),
    cluster_sizes=(1,),
    run=run,
    about=(
        "One client puts objects of 1 KB to 1 GB, copied into the store's shared memory by 1 to"
        " 16 threads; each figure is the mean of 5 repeats. The paper used a machine with 16"
        " cores; its figures are drawn, and judged against nothing that was measured on fewer."
        "\n\n"
        "A repeat puts the same value again and again (at least 128 MB, at most 1,000 objects),"
        " drops each reference for the next one, and ends when a task has read the last. It is"
        " the steady state: the store's memory was touched before, and is used again. Beside"
        " it stands a plain copy between two arrays of that size, with as many threads, in the"
        " same run; on sim it is what the profile says."
        "\n\n"
        "In simulation the paper's machine is held against its figures: the rate of large"
        " objects and of small ones have to be reached, and 8 threads have to be better than"
        " one from 1 MB on and no better up to 250 KB. What a put costs is assumed in the"
        " profile, not fitted; where a prediction misses a figure, above or below, the findings"
        " say by how much."
        "\n\n"
        "Values up to 100 KB ride in messages and are not copied into shared memory, so threads"
        " make no difference to them."
        "\n\n"
        "Ray has no option for the number of threads: it is put as 0, and the copy beside it is of"
        " one."
    ),
    headline=Headline(
        "GB/s of one client's puts of large objects",
        lambda metrics: metrics["largest_gb_per_s"],
        _RATE,
    ),
    options=(
        Option("sizes", int, SIZES_QUICK, SIZES_FULL, "object sizes in bytes", 1, many=True),
        Option("threads", int, THREADS, THREADS, "numbers of copying threads", 1, many=True),
        Option("repeats", int, 3, 5, "on real processes, of each size and number of threads", 1),
    ),
    figures=(
        _figure("Write throughput on the paper's machine", PAPER, "gb_per_s", "GB/s", _RATE),
        _figure("Writes per second on the paper's machine", PAPER, "iops", "objects/s", _IOPS),
        _figure(
            "Write throughput on this machine: predicted and measured",
            HOST, "gb_per_s", "GB/s", _RATE,
        ),
        _figure(
            "Writes per second on this machine: predicted and measured",
            HOST, "iops", "objects/s", _IOPS,
        ),
    ),
)  # fmt: skip
