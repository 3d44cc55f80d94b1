"""Figures: what there is, run, drawn, traced."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raytwin.scenarios.cli import values
from raytwin.scenarios.cli.commands.line import (
    RESULTS,
    Json,
    Out,
    Seed,
    app,
    escaped,
    open_console,
    parse_names,
    parse_nodes,
    parse_settings,
    plain,
    print_json,
    say,
    typed,
    writable,
)
from raytwin.scenarios.core.scenario import BACKENDS, ON_REQUEST, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from raytwin.chaos.faults.plan import Plan
    from raytwin.scenarios.core.scenario import Scenario
    from raytwin.scenarios.measure.reproduction import Reproduction
    from raytwin.scenarios.measure.runner import Done, Job


@app.command("list")
def list_scenarios(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names, or files with a scenario; default: all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the scenarios, the backends that each supports, and their settings.

    Those of installed packages come last. Exits 2 if one of them cannot be loaded.

    Example: `raytwin list fig8b docs/my_scenario.py`
    """
    from rich.table import Table

    from raytwin.scenarios.measure import registry

    found: dict[str, Scenario] = {}
    broken: list[UsageError] = []
    for name in names or registry.names():
        try:
            found[name] = registry.find(name)
        except UsageError as error:
            broken.append(error)
    if as_json:
        print_json([_described(name, scenario) for name, scenario in found.items()])
    else:
        table = Table("scenario", "in the paper", "what", "backends", box=None, pad_edge=False)
        table.columns[0].overflow = "fold"
        for name, scenario in found.items():
            source = registry.source(name)
            what = f"{scenario.title} (from {source})" if source else scenario.title
            backends = ", ".join(scenario.backends)
            table.add_row(scenario.name, scenario.figure, escaped(what), backends)
        console = open_console()
        console.print(table)
        _print_settings(console, found.values())
    for each in broken[:-1]:
        say(str(each))
    if broken:
        raise broken[-1]


def _print_settings(console: Console, found: Iterable[Scenario]) -> None:
    """Print a line for each setting of each scenario."""
    for scenario in found:
        for option in scenario.options:
            defaults = f"quick {typed(option.quick)}, full {typed(option.full)}"
            text = f"{scenario.name} --set {option.name}=...  {option.help} ({defaults})"
            console.print(escaped(text), soft_wrap=True)


def _described(name: str, scenario: Scenario) -> dict[str, Any]:
    """Return what `list` says of a scenario that was found by a name or a path."""
    from raytwin.scenarios.measure import registry

    return {
        "name": scenario.name,
        "from": registry.source(name) or "raytwin",
        "figure": scenario.figure,
        "title": scenario.title,
        "backends": scenario.backends,
        "settings": {
            option.name: {"help": option.help, "quick": option.quick, "full": option.full}
            for option in scenario.options
        },
    }


@app.command()
def run(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="See 'raytwin list'; or all; or a Python file with a SCENARIO.",
            autocompletion=values.scenarios,
        ),
    ],
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            autocompletion=values.backends,
            help=f"Some of {','.join(BACKENDS)}. Default: all it supports but"
            f" {' and '.join(ON_REQUEST)}.",
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="N", help="Cluster sizes, such as 10 or 1,2,4.")
    ] = None,
    scale: Annotated[str, typer.Option(metavar="SCALE", help="quick or full.")] = "quick",
    seed: Seed = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Costs to predict this machine with. Default: DIR/profile.json, measured first "
            "if a scenario runs on sim and local.",
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            autocompletion=values.plans,
            help="A fault plan to apply to every cluster that a scenario starts: a YAML or JSON"
            " file, or a name; see 'raytwin plan'.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --backend ray: run on this Ray cluster, whose nodes have raytwin installed,"
            " instead of one on this machine.",
        ),
    ] = None,
    out: Out = RESULTS,
) -> None:
    """Run scenarios and write DIR/NAME/BACKEND/{result.json,rows.csv,timeline.json}.

    Exits 0 only if every check held.

    Examples: `raytwin run fig8b`;
    `raytwin run fig8b --backend sim --scale full`;
    `raytwin run fig8b --backend local --nodes 1,2,4 --set tasks=20000 --out /tmp/r`;
    `raytwin run docs/my_scenario.py --backend sim`
    """
    from raytwin.scenarios.measure import registry, runner

    jobs = runner.plan(
        names,
        parse_names(backend, BACKENDS, "backend"),
        scale,
        seed,
        parse_nodes(nodes),
        parse_settings(settings or []),
        address,
    )
    if address is not None and faults is not None:
        raise UsageError(
            f"--faults breaks a cluster that raytwin starts, not the one at {address!r}: leave"
            " --address out"
        )
    done = _run(jobs, out, profile, runner.read_plan(faults, [job.backend for job in jobs]))
    files = "".join(f" --scenario {name}" for name in names if registry.is_file(name))
    print(f"results are in {out}; 'raytwin report {out}{files}' draws them")
    raise typer.Exit(0 if all(each.ok for each in done) else 1)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'raytwin run' wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: DIR/report.html"),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario", metavar="FILE", help="A file whose scenario was run; may be repeated."
        ),
    ] = None,
) -> None:
    """Draw one self-contained HTML file from results.

    Where they are in DIR, it also shows bench.json (`raytwin bench --json`), benchmarks.json (the
    history that github-action-benchmark keeps), fuzz.json (`raytwin fuzz`) and recovery*.json
    (`raytwin exec --faults PLAN --json`).

    Example: `raytwin report results -o report.html`
    """
    from raytwin.scenarios.core import results
    from raytwin.scenarios.measure import registry

    found = results.read_all(directory, timelines=True)
    known = registry.with_others({each.record.scenario for each in found}, files or ())
    path = writable(output or directory / "report.html")
    _report(found, known, directory, path)
    if show:
        typer.launch(path.absolute().as_uri())


@app.command()
def timeline(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT", help="What 'raytwin run' wrote: all, a scenario, or one result."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: trace.json beside it."),
    ] = None,
) -> None:
    """Write one Chrome trace of runs: tasks, transfers, placements, failures.

    It opens in Perfetto (ui.perfetto.dev) or in chrome://tracing. Of a run with many tasks all
    failures and re-executions are there, and 5,000 further ranges, transfers and placements each:
    those nearest to the failures, or the first ones. What was left out is said below the trace's
    name and in the trace.

    Example: `raytwin timeline results/fig11a -o fig11a.json`
    """
    from raytwin.scenarios.core import results, run_trace

    folders = run_trace.find(path)
    target = writable(output or (path if path.is_dir() else path.parent) / run_trace.FILE)
    events = run_trace.combined(folders)
    try:
        results.write_file(target, run_trace.encode(events))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    count = sum(event["ph"] == "X" for event in events)
    print(f"the trace is {target}: {len(folders)} runs, {count:,} slices, {len(events):,} events")
    for line in run_trace.left_out(events):
        print(line)


@app.command()
def reproduce(
    quick: Annotated[bool, typer.Option("--quick", help="The small scale of each.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier run has left in DIR.")
    ] = False,
    seed: Seed = 0,
    out: Out = RESULTS,
) -> None:
    """Run every figure of the paper on sim and on local, then write the report.

    After Ctrl-C or a failure the same command goes on from there: it takes over what this commit
    has finished with the same settings, if every check of it holds.

    Example: `raytwin reproduce --quick --out results`
    """
    from raytwin.scenarios.core import results
    from raytwin.scenarios.core.scenario import BEYOND
    from raytwin.scenarios.measure import registry, reproduction, runner

    known = registry.scenarios()
    published = [name for name, each in known.items() if each.figure != BEYOND]
    jobs = runner.plan(published, scale="quick" if quick else "full", seed=seed)
    runner.prepare(out)
    whole = reproduction.Reproduction(jobs, out, fresh)
    if whole.taken:
        names = ", ".join(job.name for job in whole.taken)
        print(f"taken over from an earlier run (--fresh runs all anew): {names}")
    elif runner.commit().endswith("+"):
        print("files differ from the commit: no run is taken over from an earlier one")
    done = _run(whole.jobs, out, None, whole=whole)
    # Beside the paper's there may be results of scenarios in files, which `report` draws.
    found = [
        each for each in results.read_all(out, timelines=True) if each.record.scenario in known
    ]
    _report(found, known, out, out / "report.html")
    raise typer.Exit(0 if all(each.ok for each in done) else 1)


def _run(
    jobs: Sequence[Job],
    out: Path,
    profile: Path | None,
    faults: Plan | None = None,
    whole: Reproduction | None = None,
) -> list[Done]:
    """Run `jobs` under a progress bar, which says where the `whole` of it is; print each."""
    from raytwin.scenarios.cli import progress
    from raytwin.scenarios.measure import runner

    if profile is not None:
        runner.read_profile(profile)
    runner.prepare(out)
    console = open_console()
    with progress.terminal() as shown:
        used = runner.profile_for(jobs, out, profile, shown)
        if used is not None and (line := runner.unsteady(used)):
            with shown.aside():
                console.print(line, style="yellow", highlight=False, soft_wrap=True)

        def after(each: Done) -> None:
            if whole is not None:
                whole.add(each)
            with shown.aside():
                _print(console, each)

        try:
            if whole is None:
                return runner.run(jobs, out, used, shown, after, faults)
            shown.begin(whole.what(), len(whole.simulated))
            done = runner.simulate(whole.simulated, out, used, shown, after)
            within = progress.Part(shown, whole.where)
            return done + runner.run(whole.measured, out, used, within, after)
        except KeyboardInterrupt as error:
            then = ", and the same command goes on from there" if whole is not None else ""
            error.add_note(f"what had been completed is kept{then}")
            raise


def _print(console: Console, done: Done) -> None:
    """Print a run's metrics and checks; what went wrong in full."""
    from rich.table import Table

    if done.result is None:
        console.print(
            f"[bold]{done.job.name}[/] [red]failed[/]: {escaped(done.error)}", soft_wrap=True
        )
        print(done.trace, file=sys.stderr, end="")
        return
    record = done.result.record
    console.print(f"[bold]{done.job.name}[/] in {done.elapsed_s:.1f} s, seed {record.seed}")
    if record.metrics:
        table = Table("metric", "value", box=None, padding=(0, 2))
        table.columns[0].overflow = "fold"  # a name that is cut is no name
        table.columns[1].justify = "right"
        for name, value in record.metrics.items():
            table.add_row(escaped(name), plain(value))
        console.print(table)
    for check in record.checks:
        mark = "[green]holds[/]" if check.ok else "[bold red]FAILS[/]"
        detail = f": {check.detail}" if check.detail else ""
        console.print(f"  {mark} {escaped(check.name + detail)}", soft_wrap=True)
    for finding in record.findings:
        console.print(f"  {escaped(finding)}", soft_wrap=True)


def _report(found: Sequence[Any], known: Any, directory: Path, path: Path) -> None:
    """Write the report, on results and what lies beside them, and say where it is."""
    from raytwin.reports.html import render
    from raytwin.reports.measurements import read_measurements
    from raytwin.scenarios.core import results

    html = render(found, known, read_measurements(directory))
    try:
        results.write_file(path, html.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    print(f"the report is {path}")
