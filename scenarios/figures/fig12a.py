"""Figure 12a: ring allreduce between actors, against MPI's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import raytwin as ray
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
    Row,
    Scenario,
    UsageError,
)
from raytwin.scenarios.peers import mpi, times_alone
from raytwin.scenarios.workloads.ring_allreduce import WARM_UPS, Passes, Ring, as_copies
from raytwin.simulator.machine.costs import load_profile

PAPER_NODES = (16,)
HOST_NODES = (2, 4)
SOURCE = "OSDI 2018, section 5.2, figure 12a"
RAY_S = {100_000_000: 0.2, 1_000_000_000: 1.2}
"""Published for 16 nodes, by bytes; "about"."""
TIMES_FASTER = {100_000_000: 1.5, 1_000_000_000: 2.0}
"""Published: than OpenMPI 1.10."""

PAPER = "paper's cluster"
HOST = "one host"
OURS = "actors"
PEER = "mpi"
"""Ranks with connections between them, as there are between nodes."""
TRANSPORTS = {"tcp": mpi.Transport.TCP, "shared-memory": mpi.Transport.SHARED_MEMORY}
PEERS = {"tcp": PEER, "shared-memory": "mpi, shared memory"}
"""By transport: the system's name."""
PATIENCE_S = 600.0
"""For a job of MPI on a machine with other work."""
WHOLE = "whole chunks"
MODULE = "raytwin.scenarios.peers.mpi_allreduce"
NETWORK_SHARE_MIN = 0.5
"""Of the network's bandwidth, at the largest size, with chunks in pieces."""
LARGE_BYTES = 100_000_000


def run(request: Request) -> Outcome:
    """Run the ring at every size; see `SCENARIO`."""
    default = PAPER_NODES if request.backend == "sim" else HOST_NODES
    sizes = request.nodes or default
    if min(sizes) < 2:
        raise UsageError("fig12a needs at least 2 nodes: a ring of one has nobody to send to")
    outcome = Outcome(rows=[])
    if request.backend == "sim":
        _simulate(request, sizes, outcome)
    else:
        _measure(request, sizes, outcome)
    wrong = sum(not row["right"] for row in outcome.rows)
    outcome.checks.append(
        Check(
            "every member has the sum of all",
            not wrong,
            f"{wrong} of {len(outcome.rows)} allreduces are wrong",
            under_faults=True,
        )
    )
    return outcome


def _simulate(request: Request, nodes: tuple[int, ...], outcome: Outcome) -> None:
    settings = request.settings
    on_host = (request.nodes or HOST_NODES) if request.profile is not None else ()
    runs = len(nodes) + len(on_host)
    request.progress.begin(f"fig12a on sim, {runs} clusters", runs)
    bandwidth = load_profile("paper").memory_bandwidth
    for count in nodes:
        vectors = product([count], settings["pieces"], settings["bytes"])
        passes = {vector: as_copies(*vector, bandwidth) for vector in vectors}
        options = {"backend": "sim", "profile": "paper", "seed": request.seed}
        _ours(outcome, count, settings["bytes"], settings, 1, PAPER, options, passes=passes)
        request.progress.advance()
    passes = _passes(settings, on_host) if on_host else {}
    for count in on_host:
        options = {"backend": "sim", "profile": str(request.profile), "seed": request.seed}
        options["nodes_per_host"] = count
        sizes = settings["bytes_on_host"]
        _ours(outcome, count, sizes, settings, 1, HOST, options, passes=passes)
        request.progress.advance()
    _judge_paper(outcome, max(nodes))


_Vector = tuple[int, int, int]
"""Members, pieces of a chunk, and bytes."""


def _passes(
    settings: Mapping[str, Any], nodes: Sequence[int] = HOST_NODES
) -> dict[_Vector, Passes]:
    """Return what one process alone takes on this machine for the pieces of the vectors."""
    vectors = list(product(nodes, settings["pieces"], settings["bytes_on_host"]))
    asked = [each for count, pieces, nbytes in vectors for each in (nbytes, count * pieces)]
    taken_s = times_alone.measured("passes_s", *asked)
    return dict(zip(vectors, map(Passes, taken_s[::2], taken_s[1::2]), strict=True))


def _measure(request: Request, nodes: tuple[int, ...], outcome: Outcome) -> None:
    settings = request.settings
    repeats, iterations = settings["repeats"], settings["iterations"]
    sizes = settings["bytes_on_host"]
    lacking = mpi.missing()
    if lacking:
        request.progress.say(lacking)
        outcome.findings.append(f"{lacking}.")
    request.progress.begin(f"fig12a on {request.backend}", len(nodes) * repeats)
    for repeat in range(repeats):
        for count in nodes:
            options = {"backend": request.backend, "seed": request.seed}
            _ours(outcome, count, sizes, settings, iterations, HOST, options, repeat)
            for name in () if lacking else settings["mpi"]:
                found = mpi.run(
                    MODULE,
                    count,
                    {"sizes_bytes": sizes, "iterations": iterations},
                    transport=TRANSPORTS[name],
                    timeout_s=PATIENCE_S,
                )
                row = _row(HOST, PEERS[name], count, repeat)
                outcome.rows += [{**row, **each} for each in found]
            request.progress.advance()
    _compare_with_peer(outcome)


def _ours(
    outcome: Outcome,
    nodes: int,
    sizes: Any,
    settings: Any,
    iterations: int,
    series: str,
    options: dict[str, Any],
    repeat: int = 0,
    passes: Mapping[_Vector, Passes] | None = None,
) -> None:
    """Add rows of all sizes on a cluster of its own, each `iterations` times; vectors are virtual
    where there are `passes`.

    On one host those before that touch memory for the first time are not counted.
    """
    ray.init(nodes=nodes, cpus_per_node=1, **options)
    try:
        for nbytes in sizes:
            for pieces in settings["pieces"]:
                vector = nodes, pieces, nbytes
                ring = Ring(*vector, None if passes is None else passes[vector])
                right = True
                for _ in range(WARM_UPS if series == HOST else 0):
                    ring.allreduce()
                    right = ring.right() and right
                for _ in range(iterations):
                    elapsed_s = ring.allreduce()
                    right = ring.right() and right
                    outcome.rows.append(
                        {
                            **_row(series, OURS, nodes, repeat, _chunks(pieces)),
                            "bytes": nbytes,
                            "elapsed_s": elapsed_s,
                            "right": right,
                        }
                    )
                ring.end()
        outcome.timeline = outcome.timeline or run_trace.kept()
    finally:
        ray.shutdown()


def _row(series: str, system: str, nodes: int, repeat: int, chunks: str | None = None) -> Row:
    return {"series": series, "system": system, "chunks": chunks, "nodes": nodes, "repeat": repeat}


def _chunks(pieces: int) -> str:
    return WHOLE if pieces == 1 else f"chunks in {pieces}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:g}_mb"


def _medians(rows: list[Row], **where: Any) -> dict[int, float]:
    """Return the median time by bytes of the rows that have these cells."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if all(row[name] == value for name, value in where.items()):
            found.setdefault(row["bytes"], []).append(row["elapsed_s"])
    return {nbytes: statistics.median(times) for nbytes, times in found.items()}


def _judge_paper(outcome: Outcome, nodes: int) -> None:
    """Add metrics, the errors against what is published, and how much of the network is used."""
    rows = [row for row in outcome.rows if row["series"] == PAPER and row["nodes"] == nodes]
    bandwidth = load_profile("paper").bandwidth
    for chunks in dict.fromkeys(row["chunks"] for row in rows):
        times = _medians(rows, chunks=chunks)
        for nbytes, elapsed_s in times.items():
            slug = f"{_size(nbytes)}_{chunks.replace(' ', '_')}"
            outcome.metrics[f"elapsed_s_{slug}"] = elapsed_s
            if nodes == PAPER_NODES[0] and nbytes in RAY_S:
                error = 100 * (elapsed_s / RAY_S[nbytes] - 1)
                outcome.metrics[f"error_percent_{slug}"] = error
                outcome.findings.append(
                    f"{nbytes / 1e6:g} MB, {chunks}: {elapsed_s * 1e3:.0f} ms on {nodes} nodes,"
                    f" published about {RAY_S[nbytes] * 1e3:.0f} ms ({error:+.0f} %)."
                )
    best = _medians(rows)
    largest = max(best)
    least_s = 2 * (nodes - 1) / nodes * largest / bandwidth
    fastest_s = min(row["elapsed_s"] for row in rows if row["bytes"] == largest)
    share = least_s / fastest_s
    outcome.metrics[f"network_share_{_size(largest)}"] = share
    outcome.findings.append(
        f"The network alone needs {least_s * 1e3:.0f} ms for {largest / 1e6:g} MB: the faster ring"
        f" uses {share:.0%} of it."
    )
    if largest >= LARGE_BYTES:
        outcome.checks.append(
            Check(
                f"the ring uses {NETWORK_SHARE_MIN:.0%} of the network",
                share >= NETWORK_SHARE_MIN,
                f"{share:.0%} at {largest / 1e6:g} MB",
            )
        )


def _compare_with_peer(outcome: Outcome) -> None:
    """Add metrics, and say by size how many times faster or slower than MPI the ring is."""
    rows = outcome.rows
    for count in dict.fromkeys(row["nodes"] for row in rows):
        systems = {
            system: _medians(rows, nodes=count, system=system)
            for system in dict.fromkeys(row["system"] for row in rows)
        }
        chunks = dict.fromkeys(row["chunks"] for row in rows if row["system"] == OURS)
        ours = {
            nbytes: min(_medians(rows, nodes=count, chunks=each)[nbytes] for each in chunks)
            for nbytes in systems[OURS]
        }
        ratios = []
        for nbytes, elapsed_s in ours.items():
            outcome.metrics[f"elapsed_s_{_size(nbytes)}_on_{count}_nodes"] = elapsed_s
            if PEER in systems:
                ratio = systems[PEER][nbytes] / elapsed_s
                where = f"{_size(nbytes)}_on_{count}_nodes"
                outcome.metrics[f"times_faster_than_mpi_{where}"] = ratio
                for name, system in (("", OURS), ("_mpi", PEER)):
                    times = [
                        row["elapsed_s"]
                        for row in rows
                        if (row["nodes"], row["bytes"], row["system"]) == (count, nbytes, system)
                    ]
                    outcome.metrics[f"fastest{name}_s_{where}"] = min(times)
                    outcome.metrics[f"slowest{name}_s_{where}"] = max(times)
                ratios.append(f"{ratio:.2g} at {nbytes / 1e6:g} MB")
        if ratios:
            outcome.findings.append(
                f"{count} nodes: times faster than Open MPI over TCP, in one run: "
                f"{', '.join(ratios)}. Published for 16 hosts: 1.5 at 100 MB and 2 at 1 GB, and"
                " OpenMPI is faster where the vector is small."
            )


SMALL_BYTES = 1_000_000
"""A small vector on one host, where the paper says that OpenMPI is faster."""


def _faster(metrics: Metrics, nbytes: int, nodes: int) -> float:
    return metrics[f"times_faster_than_mpi_{_size(nbytes)}_on_{nodes}_nodes"]


def _spread(metrics: Metrics, nbytes: int, nodes: int) -> tuple[str, str, float]:
    """Return the times of raytwin and of MPI in words, and how many times MPI's best is faster."""
    where = f"{_size(nbytes)}_on_{nodes}_nodes"
    ours, theirs = (
        (metrics[f"fastest{name}_s_{where}"], metrics[f"slowest{name}_s_{where}"])
        for name in ("", "_mpi")
    )
    words = [f"{1e3 * low:.3g} to {1e3 * high:.3g} ms" for low, high in (ours, theirs)]
    return words[0], words[1], ours[0] / theirs[0]


def _why_small(metrics: Metrics, nodes: int) -> str:
    """Return what a small vector takes at best and at worst, and how it travels."""
    ours, theirs, best = _spread(metrics, SMALL_BYTES, nodes)
    at_best = (
        f"at their best MPI is {best:.2g} times faster, as published"
        if best > 1
        else f"even at their best MPI takes {1 / best:.2g} times as long"
    )
    return (
        f"with {nodes} ranks MPI took {theirs}, raytwin {ours}: {at_best}. Ranks poll while they"
        " wait, a core each, and wait for one another longer where ranks or other programs share"
        f" cores; raytwin's processes sleep. A message has {SMALL_BYTES / nodes / 1e3:g} KB, and"
        f" goes {2 * (nodes - 1)} hops in place of the 30 of 16 hosts."
    )


def _why_large(metrics: Metrics, nodes: int) -> str:
    """Return how fast a large vector passes through the machine."""
    ours, theirs, _ = _spread(metrics, LARGE_BYTES, nodes)
    least_s = metrics[f"fastest_s_{_size(LARGE_BYTES)}_on_{nodes}_nodes"]
    rate = 2 * (nodes - 1) / nodes * LARGE_BYTES / least_s
    return (
        f"with {nodes} ranks MPI took {theirs}, raytwin {ours}. At its best each node of raytwin"
        f" sends {rate / 1e9:.2g} GB/s, through an object store on either side. The paper's Ray"
        " wins by filling a link of 25 Gbit/s with several threads, which OpenMPI 1.10 could not"
        " with one; on one machine there is no link to fill, and both share memory and cores."
    )


RING = f"{OURS} · {WHOLE}"
"""The curve that the paper's numbers of Ray belong to: 16 tasks a round."""

SCENARIO = Scenario(
    name="fig12a",
    time_bodies=_passes,
    nodes_max={"sim": 64, "local": 16},
    title="Ring allreduce between actors",
    figure="Figure 12a",
    backends=("sim", "local", "ray"),
    run=run,
    about=(
        "The paper adds up a vector of 10 MB, 100 MB and 1 GB on 16 m4.16xlarge nodes, with one"
        " worker on each, and compares with OpenMPI 1.10. It says in its text that Ray takes about"
        " 200 ms at 100 MB and about 1,200 ms at 1 GB, 1.5 and 2 times less than OpenMPI, and that"
        " OpenMPI is faster on small objects, where it has another algorithm. The times of OpenMPI"
        " that are shown follow from these ratios."
        "\n\n"
        "Here one actor on each node is in a ring; every round is a call of each actor, which is"
        " scheduled when its input has arrived, as in the paper, where 32 rounds have 16 tasks each"
        " (here 31, the first of which hands over what is there). With whole chunks an actor has"
        " nothing to do while its chunk is on its way; with chunks in pieces it has. The simulation"
        " has the profile 'paper', with no figure fitted to this experiment. It assumes that a sum"
        " takes one core as long as a copy, on one host what one process alone takes there; and it"
        " moves blobs: one number of each piece is really added up, and checked."
        "\n\n"
        "On one host the same program runs on real processes with numpy arrays of float32, all of"
        " which are compared with the sum. Open MPI's Allreduce runs in the same run, in turn with"
        " it, through mpi4py: a job for each repeat, each with a connection of the loopback device"
        " between ranks, as raytwin has between nodes, and once more with the shared memory that"
        " Open MPI would take by itself. It is a newer release than the paper's, and chooses its"
        " algorithm by size."
    ),
    headline=Headline(
        "ms of a ring allreduce of 1 GB on 16 nodes",
        lambda metrics: 1e3 * metrics["elapsed_s_1000_mb_whole_chunks"],
        PublishedPoint(1e9, 1_200.0, note=f"{SOURCE}: about"),
        measured=lambda metrics: 1e3 * metrics["elapsed_s_100_mb_on_4_nodes"],
        measured_what="100 MB on 4 nodes of one host",
        peer=lambda metrics: (
            1e3
            * metrics["elapsed_s_100_mb_on_4_nodes"]
            * metrics["times_faster_than_mpi_100_mb_on_4_nodes"]
        ),
        peer_name="Open MPI",
    ),
    ratios=(
        Ratio(
            "allreduce of 100 MB on 4 nodes of one host, against Open MPI over TCP",
            PublishedPoint(LARGE_BYTES, TIMES_FASTER[LARGE_BYTES], note=SOURCE),
            lambda metrics: _faster(metrics, LARGE_BYTES, 4),
            lambda metrics: _why_large(metrics, 4),
        ),
        *(
            Ratio(
                f"allreduce of 1 MB on {nodes} nodes of one host, against Open MPI over TCP",
                PublishedPoint(SMALL_BYTES, 1.0, "at_most", f"{SOURCE}: on small objects"),
                partial(_faster, nbytes=SMALL_BYTES, nodes=nodes),
                partial(_why_small, nodes=nodes),
            )
            for nodes in HOST_NODES
        ),
    ),
    options=(
        Option(
            "bytes",
            int,
            (10_000_000, 100_000_000, 1_000_000_000),
            (10_000_000, 100_000_000, 1_000_000_000),
            "of the vector, on the paper's cluster",
            minimum=4,
            many=True,
        ),
        Option(
            "bytes_on_host",
            int,
            (1_000_000, 10_000_000, 100_000_000),
            (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000),
            "of the vector, on one host",
            minimum=4,
            many=True,
        ),
        Option("pieces", int, (1, 2), (1, 2, 4), "of a chunk", minimum=1, many=True),
        Option(
            "mpi",
            str,
            ("tcp",),
            ("tcp", "shared-memory"),
            "what is between ranks of MPI on local",
            choices=tuple(TRANSPORTS),
            many=True,
        ),
        Option("repeats", int, 2, 7, "fresh clusters, and jobs of MPI, on local", minimum=1),
        Option("iterations", int, 1, 3, "measured in each of them", minimum=1),
    ),
    figures=(
        FigureSpec(
            title="Time of an allreduce among 16 nodes of the paper's cluster",
            x="bytes",
            y="elapsed_s",
            x_label="vector",
            y_label="time",
            x_scale="log",
            y_scale="log",
            x_unit="bytes",
            y_unit="s",
            series=("system", "chunks"),
            where={"series": PAPER},
            published=(
                *(
                    PublishedPoint(nbytes, s, note=f"{SOURCE}: about", series=RING, system="Ray")
                    for nbytes, s in RAY_S.items()
                ),
                *(
                    PublishedPoint(
                        nbytes,
                        times * RAY_S[nbytes],
                        note=f"{SOURCE}: Ray is {times:g} times faster",
                        series=PEER,
                        system="OpenMPI 1.10",
                    )
                    for nbytes, times in TIMES_FASTER.items()
                ),
            ),
            published_shape="Ray is faster than OpenMPI on large vectors, slower on small ones",
        ),
        FigureSpec(
            title="Time of an allreduce with all nodes on one host, against Open MPI",
            x="bytes",
            y="elapsed_s",
            x_label="vector",
            y_label="time",
            x_scale="log",
            y_scale="log",
            x_unit="bytes",
            y_unit="s",
            series=("system", "chunks", "nodes"),
            where={"series": HOST},
            compare=Compare(
                on=("nodes", "bytes", "chunks"),
                column="elapsed_s",
                predicted={"series": HOST, "system": OURS},
                measured={"series": HOST, "system": OURS},
                aim_percent=5,
            ),
            note="The number behind each system is that of nodes, or ranks.",
        ),
    ),
)
