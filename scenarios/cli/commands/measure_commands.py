"""What is measured or tried apart from figures: speed, baselines, costs, recovery, the machine."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from raytwin.scenarios.cli import values
from raytwin.scenarios.cli.commands.line import (
    RESULTS,
    Json,
    app,
    escaped,
    open_console,
    parse_names,
    plain,
    print_json,
    say,
    writable,
)
from raytwin.scenarios.core.scenario import UsageError

PEERS = ("ray", "dask")
Threshold = Annotated[
    float,
    typer.Option(min=0.0, max=100.0, metavar="%", help="A slow-down of so much is let pass."),
]
SHRUNK_MAX = 3
"""Failing seeds that one campaign shrinks: the next ones mostly have the same cause."""


CASES = (
    "start_up", "idle_memory", "first_put_800mb", "tasks_sync", "tasks_1000", "task_array",
    "wait_1000", "actor_sync", "actor_1000", "create_100_actors", "put_small", "get_small",
    "put_1mb", "put_800mb",
)  # fmt: skip
LARGE = ("start_100_nodes", "memory_100_nodes", "create_2000_actors")
GATED = (
    "tasks_sync", "tasks_1000", "actor_sync", "actor_1000", "put_small", "get_small",
    "sim:tasks_sync", "sim:tasks_1000", "sim:actor_1000",
)  # fmt: skip
"""The names for the help, which imports no benchmark; a test holds them to the cases."""
ALONE_ROUNDS = 12
"""Rounds of ours alone: as many as `compare` needs."""


@app.command()
def bench(
    peers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help=f"Measure these in the same run: {','.join(PEERS)}."),
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option(
            "--cases",
            metavar="LIST",
            help=f"Measure these alone, of: {', '.join(CASES)}. Only so, and without peers: "
            f"{', '.join(LARGE)}. With --against by default {', '.join(GATED)}; sim: is the case"
            " in simulation.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every round here.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the medians as github-action-benchmark reads them"
            " (customSmallerIsBetter).",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Measure this tree against a commit, tag or branch of it, or against what is"
            " installed for another interpreter (its path), both interleaved.",
        ),
    ] = None,
    threshold: Threshold = 2.0,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Rounds: 7 by default, 12 without peers. With --against: at most so many, by"
            " default 36; fewer than 12 decide nothing.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --against: also write the table as Markdown."),
    ] = None,
) -> None:
    """Measure the runtime's basic operations, interleaved with its peers'; medians.

    A ratio is ours to the peer before it, above 1 is better for us. If it is ended
    before its end, the cases that were complete are shown.

    With --against it is a gate: both trees get fresh clusters in each round, and rounds go on
    until the interval of the slow-down (bootstrap, 99.8 %) lies on one side of the threshold, or
    N are taken. It exits with 1 and names the case where all of the interval is beyond, and was
    again when measured anew.

    Examples: `raytwin bench --peers ray,dask --json bench.json`;
    `raytwin bench --cases actor_sync,put_1mb --peers ray`; `raytwin bench --against main`
    """
    if against is None and markdown is not None:
        raise UsageError("--markdown is the table of --against REV: give both")
    if against is not None and (peers is not None or history is not None):
        raise UsageError("--against measures two trees of raytwin: leave --peers and --history out")
    for path in (json, history, markdown):
        if path is not None:
            writable(path)
    if against is not None:
        _gate(against, cases, threshold / 100, rounds, json, markdown)
        return
    asked = parse_names(peers, PEERS, "peer") or []
    from raytwin.scenarios.bench import files, tables
    from raytwin.scenarios.bench.conversation import BenchError
    from raytwin.scenarios.bench.peers import check_peers
    from raytwin.scenarios.bench.run import KNOWN, NAMES, Effort, run_bench
    from raytwin.scenarios.cli import progress

    check_peers(asked)
    named = parse_names(cases, KNOWN, "benchmark")
    effort = Effort(names=tuple(named or NAMES))
    if rounds is not None:
        effort = replace(effort, rounds=rounds, fresh_rounds=rounds)
    elif not asked:
        effort = replace(effort, rounds=ALONE_ROUNDS, fresh_rounds=ALONE_ROUNDS)
    rows: list[dict[str, Any]] = []
    try:
        with progress.terminal() as shown:
            run_bench(asked, json, shown, effort, rows.append)
    except BenchError as error:
        say(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        kept = "" if json is None else f"; {json} was not written"
        error.add_note(f"{len(rows)} of {len(effort.names)} cases were measured{kept}")
        raise
    finally:
        if rows:
            _print(rows, asked)
    if history is not None:
        files.write(history, tables.history(rows))


def _print(rows: list[dict[str, Any]], asked: list[str]) -> None:
    """Print the benchmark's table."""
    from rich.table import Table

    columns = [column for peer in asked for column in (peer, "ratio")]
    table = Table("what", "raytwin", *columns, "unit", box=None, pad_edge=False)
    for row in rows:
        cells = []
        for peer in asked:
            ratio = row["ratios"].get(peer)
            cells += [plain(row["peers"].get(peer)), "" if ratio is None else f"{ratio:.1f}x"]
        table.add_row(row["name"], plain(row["ours"]), *cells, row["unit"])
    open_console().print(table)


def _gate(
    against: str,
    cases: str | None,
    threshold: float,
    rounds_max: int | None,
    json: Path | None,
    markdown: Path | None,
) -> None:
    """Measure this tree against another one; exit with 1 where it is slower."""
    from raytwin.scenarios.bench import files, gate, tables
    from raytwin.scenarios.bench.conversation import BenchError
    from raytwin.scenarios.bench.trees import other_tree, this_tree
    from raytwin.scenarios.cli import progress

    subjects = parse_names(cases, gate.KNOWN, "benchmark of two trees") or list(gate.SUBJECTS)
    try:
        with progress.terminal() as shown, other_tree(against) as other:
            rounds = gate.Rounds(other, this_tree())
            found = gate.compare_trees(
                rounds, subjects, threshold, rounds_max or gate.ROUNDS_MAX, shown
            )
    except BenchError as error:
        say(str(error))
        raise typer.Exit(1) from error
    if json is not None:
        files.write(json, found)
    if markdown is not None:
        markdown.write_text(tables.markdown(found))
    _judge(found["rows"])


def _judge(rows: list[dict[str, Any]]) -> None:
    """Print what two sides differ in; exit with 1 where the new one is slower."""
    from rich.table import Table

    from raytwin.scenarios.bench import tables

    table = Table("case", "statistic", "slower by", "rounds", "", box=None, pad_edge=False)
    for row in rows:
        count = str(len(row["new_s"]))
        cells = (row["name"], row["statistic"], tables.interval(row), count, row["verdict"])
        table.add_row(*cells)
    open_console().print(table)
    say(tables.summary(rows))
    raise typer.Exit(1 if any(row["verdict"] == "slower" for row in rows) else 0)


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="What 'raytwin bench --json' wrote.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The same, of another time.")],
    threshold: Threshold = 2.0,
) -> None:
    """Say what is slower in one file of the benchmark than in another one of the same host.

    By the same statistics as `raytwin bench --against`, which is to be preferred: what the machine
    did while one of the files was measured looks like the commit's doing here. Exits with 1 where
    all of an interval is beyond the threshold. At least 12 rounds are needed, as `raytwin bench`
    without peers takes.

    Example: `raytwin compare before.json after.json`
    """
    from raytwin.scenarios.bench import files

    _judge(files.compare(files.read(old), files.read(new), threshold / 100))


@app.command()
def baseline(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="See 'raytwin list'.", autocompletion=values.scenarios),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run, and say what moved: old, new, percent.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Run, and write the figures as the new baselines.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(
            metavar="SCALE",
            help="quick, full, all, or cheap: quick, and what of full takes less than 20 s or so.",
        ),
    ] = "cheap",
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where the baselines are, if elsewhere."),
    ] = None,
) -> None:
    """Hold the figures of scenarios on `sim` to those that are kept beside them.

    The simulation is deterministic: what moved was moved by a change of the code. Besides a
    scenario's metrics, the messages, frames, bytes and turns of each role are compared, per task.
    Exits 1 if anything moved, or was not written.

    Examples: `raytwin baseline --check`; `raytwin baseline --check fig8b --scale all`;
    `raytwin baseline --update --scale all`
    """
    if check == update:
        raise UsageError("give --check to compare, or --update to write")
    from raytwin.scenarios.cli import progress
    from raytwin.scenarios.core.results import ResultError
    from raytwin.scenarios.measure import baselines

    subjects = baselines.chosen(names or [], scale)
    folder = folder or baselines.FOLDER
    if not folder.is_dir():
        raise UsageError(f"{folder} is no directory: give the one where the baselines are")
    act, differs = (baselines.check, "moved") if check else (baselines.update, "written")
    done = moved = 0
    try:
        with progress.terminal() as shown:
            for subject in subjects:
                shown.begin(subject.name)
                started_s = time.perf_counter()
                try:
                    lines, wrong = act(subject, shown, folder), ""
                except UsageError:
                    raise
                except ResultError as error:
                    lines, wrong = [], str(error)
                except Exception as error:
                    traceback.print_exc(file=sys.stderr)
                    lines, wrong = [], f"failed: {type(error).__name__}: {error}"
                done += 1
                moved += bool(wrong or (check and lines))
                elapsed_s = time.perf_counter() - started_s
                with shown.aside():
                    verdict = wrong or (differs if lines else "holds")
                    print(f"{subject.name}: {verdict} ({elapsed_s:.1f} s)")
                    for line in lines:
                        print(f"  {line}")
    except KeyboardInterrupt as error:
        error.add_note(f"{done} of {len(subjects)} were run")
        raise
    what = "hold" if check else "are up to date"
    print(f"{done - moved} of {done} baselines {what}")
    left_out = [s.name for s in baselines.chosen(names or [], "all") if s not in subjects]
    if left_out:
        print(f"left out at --scale {scale}: {', '.join(left_out)}")
    raise typer.Exit(1 if moved else 0)


@app.command()
def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE")] = Path("profile.json"),
) -> None:
    """Measure what the runtime's operations cost on this machine, for the simulator.

    Example: `raytwin calibrate -o results/profile.json`
    """
    from raytwin.scenarios.cli import progress
    from raytwin.scenarios.measure import runner

    writable(output)
    with progress.terminal() as shown:
        runner.calibrate(output, shown)
    print(f"the profile is {output}")
    if line := runner.unsteady(output):
        print(line)


@app.command()
def fidelity(
    workloads: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="These alone; by default all: see docs/measured.md."),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=2, metavar="N", help="Rounds of calibration, predictions and measurements."
        ),
    ] = 5,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Predict with what 'raytwin calibrate' has written, and calibrate nothing.",
        ),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, metavar="N", help="Then try N more programs for the worst case."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="S", help="Of the search; by default 0.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where fidelity.json is written, for reports."),
    ] = RESULTS,
) -> None:
    """Say how far predictions are off, of programs that the calibration has not seen.

    In each of N rounds it takes small programs of many shapes a dozen at a time: it calibrates
    this machine, predicts them, writes the predictions with their digest, and then measures each
    twice, one right after the other, in fresh clusters. An error is signed, and the median
    over all; its aim is 10 % (20 % of a p99 and of a recovery), or twice the noise floor, which is
    how far the two clusters of a round differ. The naive model is tasks x mean time / cores. Where
    processes die or links fail, it compares how long the cluster took to recover.

    A search draws half of its programs, layered graphs, at random; each other one is the worst so
    far with one parameter changed. The worst in the end is measured anew, in as many clusters.

    Examples: `raytwin fidelity --rounds 5`; `raytwin fidelity --rounds 5 --search 12`
    """
    from raytwin.scenarios.cli import fidelity_table, progress
    from raytwin.scenarios.measure import fidelity_study, runner
    from raytwin.scenarios.workloads.held_out import WORKLOADS

    if seed is not None and search is None:
        raise UsageError("--seed is of a search: give --search N")
    names = parse_names(workloads, tuple(WORKLOADS), "workload") or list(WORKLOADS)
    if profile is not None:
        runner.read_profile(profile)
    runner.prepare(out)
    with progress.terminal() as shown:
        found = fidelity_study.study(names, rounds, out, shown, profile, search or 0, seed or 0)
    fidelity_table.show(open_console(), found)


@app.command()
def fuzz(
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="How many seeds to run.")
    ],
    start: Annotated[
        int, typer.Option("--start", min=0, metavar="S", help="The first of them.")
    ] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, max=256, metavar="J", help="Processes; by default one for each core."
        ),
    ] = None,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="Only plans in which no node dies.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where fuzz.json and failing seeds are written."),
    ] = RESULTS,
    shrink: Annotated[
        bool,
        typer.Option(
            help=f"Shrink the first {SHRUNK_MAX} failing seeds to the faults and operations that"
            " matter."
        ),
    ] = True,
) -> None:
    """Run random programs under random faults on `sim`, each held to a sequential run.

    A seed that fails is printed and written to DIR/fuzz-SEED.json: the cluster, the program and
    the plan, shrunk in the end to the few faults and operations with which it fails in the same
    way. `raytwin replay FILE` runs the file again. The exit code is then 1. After Ctrl-C the
    files have the smallest cases so far. DIR/fuzz.json has the numbers of all, for the report.

    Example: `raytwin fuzz --seeds 2000`
    """
    from raytwin.chaos.fuzz.run.campaign import EXCUSED_MAX, Summary, run_seeds, write_failure
    from raytwin.chaos.fuzz.run.shrink import Shrinker, described
    from raytwin.scenarios.cli import progress
    from raytwin.scenarios.core import campaigns
    from raytwin.scenarios.measure import runner

    runner.prepare(out)
    summary = Summary()
    failing = []
    told: dict[int, campaigns.Failing] = {}
    """Of the seeds that fail, what the file says."""
    date, started_s = campaigns.now(), time.perf_counter()

    def keep() -> None:
        found = campaigns.Campaign(
            date=date,
            first_seed=start,
            seeds=seeds,
            lossless=lossless,
            ran=summary.ran,
            failed=summary.failed,
            tasks=summary.tasks,
            faults=summary.faults,
            values=summary.outcomes,
            verdicts={each.name.lower(): count for each, count in summary.verdicts.items()},
            duration_s=round(time.perf_counter() - started_s, 3),
            failing=list(told.values()),
        )
        campaigns.write(out / campaigns.CAMPAIGN, found)

    with progress.terminal() as shown:
        try:
            used = min(seeds, jobs or os.cpu_count() or 1)
            with closing(run_seeds(range(start, start + seeds), used, lossless)) as reports:
                shown.begin(f"fuzz, seeds {start} to {start + seeds - 1}", seeds)
                for report in reports:
                    shown.advance()
                    summary.add(report)
                    if report.failures:
                        failing.append(report)
                        path = write_failure(report, out)
                        failures = list(map(str, report.failures))
                        told[report.case.seed] = campaigns.Failing(
                            report.case.seed, failures, path.name
                        )
                        with shown.aside():
                            print(
                                f"seed {report.case.seed} fails: {report.failures[0]} (see {path})"
                            )
        except KeyboardInterrupt as error:
            error.add_note(f"{summary.ran} of {seeds} seeds were run")
            raise
        finally:
            with shown.aside():
                print(summary)
            keep()
        for report in failing[:SHRUNK_MAX] if shrink else ():
            shown.begin(f"shrinking seed {report.case.seed}")
            smaller = Shrinker(
                report, lambda smaller: write_failure(smaller, out), shown.advance
            ).shrink()
            told[report.case.seed].shrunk_to = described(smaller.case)
            keep()
            with shown.aside():
                print(f"seed {report.case.seed} fails with {described(smaller.case)}")
    if summary.excuses_too_much:
        print(f"more than {EXCUSED_MAX:.0%} are excused, where a defect would not be found")
    raise typer.Exit(1 if summary.failed or summary.excuses_too_much else 0)


@app.command()
def replay(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A case that the fuzz has written; with --component: a journal."
        ),
    ],
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a case: sim, the same run again (the default), or local, on real processes.",
        ),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Of a case: also print faults, events and executed tasks, by time."
        ),
    ] = False,
    component: Annotated[
        bool,
        typer.Option(
            "--component",
            help="FILE is the journal of one component of a real cluster, which"
            " 'raytwin exec --journal DIR' has written: replay its turns in this process.",
        ),
    ] = False,
    until: Annotated[
        int | None,
        typer.Option("--until", min=0, metavar="TURN", help="Of a journal: end with this turn."),
    ] = None,
    stop_before: Annotated[
        int | None,
        typer.Option(
            "--break",
            min=1,
            metavar="TURN",
            help="Of a journal: stop in the debugger just before this turn, with `component` and"
            " `turn` at hand.",
        ),
    ] = None,
) -> None:
    """Run a case of `raytwin fuzz` again, or replay a component of a real cluster.

    A case is on `sim` the same execution to the last message. On `local` the program runs on real
    processes, with the steps of the plan that these can have. Exits 0 if all holds, 1 if not.

    With --component the control plane's code gets each input of a node manager, of the GCS, of a
    scheduler or of a replica at the time when it came, and has to send what it sent then. Exits
    0 if all outputs agree; else 1, after the first turn that differs.

    Examples: `raytwin replay results/fuzz-42.json --trace`;
    `raytwin replay --component journals/node-0.journal`;
    `raytwin replay --component journals/gcs.journal --break 57`
    """
    if component:
        if backend is not None or trace:
            raise UsageError("--backend and --trace are of a case, not of --component")
        _replay_component(file, until, stop_before)
    if until is not None or stop_before is not None:
        raise UsageError("--until and --break are of a journal: give --component")
    from raytwin.chaos.fuzz.generate.case_file import CaseError, load
    from raytwin.chaos.fuzz.run import replay as again

    backend = backend or "sim"
    if backend not in ("sim", "local"):
        raise UsageError(f"no replay on {backend!r}: there are sim and local")
    if trace and backend == "local":
        raise UsageError("--trace is for sim; on local, `raytwin timeline` shows what ran")
    try:
        case = load(file)
        if backend == "sim":
            report, lines = again.on_sim(case, trace)
        else:
            for each in again.not_on_local(case):
                say(f"local cannot do {each}: the rest is run")
            report, lines = again.on_local(case), []
    except (CaseError, ValueError) as error:
        raise UsageError(str(error)) from error
    print("\n".join((*lines, *(f"fails: {each}" for each in report.failures))) or "all holds")
    raise typer.Exit(1 if report.failures else 0)


def _replay_component(file: Path, until: int | None, stop_before: int | None) -> NoReturn:
    """Replay a journal, print what came of it, and exit."""
    from raytwin.scenarios.cli.replay_component import DebuggerLeft, replay_component

    try:
        agrees, text = replay_component(file, until, stop_before)
    except DebuggerLeft as left:
        say(str(left))
        raise typer.Exit(130) from None
    print(text)
    raise typer.Exit(0 if agrees else 1)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Try what works on this machine, and say what to install for the rest.

    Exits 0 if the backends local and sim work.
    """
    from raytwin.scenarios.cli import doctor as diagnosis

    if as_json:
        findings = list(diagnosis.examine())
        print_json([dataclasses.asdict(finding) for finding in findings])
        raise typer.Exit(0 if diagnosis.healthy(findings) else 1)
    console = open_console()
    findings = []
    for finding in diagnosis.examine():
        findings.append(finding)
        mark = "[green]ok     [/]" if finding.ok else "[red]missing[/]"
        fix = "" if finding.ok else f" (for {finding.needed_for}; to get it: {finding.fix})"
        text = escaped(f"{finding.name}: {finding.detail}{fix}")
        console.print(f"{mark}  {text}", soft_wrap=True)
    raise typer.Exit(0 if diagnosis.healthy(findings) else 1)
