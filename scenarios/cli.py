"""The command line.

Exit codes: 0 all is well; 1 it ran, and a check failed or a scenario broke;
2 the user asked for something that cannot be, and one line says what can;
130 interrupted, 143 terminated (SIGTERM). Results go to stdout, progress and complaints to stderr.

Heavy modules (matplotlib, the scenarios themselves) are imported by the
commands that need them, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from scenarios.base import BACKENDS, UsageError, did_you_mean, parse_number
from scenarios.signals import (
    TERMINATED,
    Interrupted,
    Terminated,
    leave_sigterm_alone,
    sigterm_raises,
)

if TYPE_CHECKING:
    from rich.console import Console

    from scenarios.runner import Done

PEERS = ("ray", "dask")
NODES_MAX = 100_000
RESULTS = Path("results")

# typer brings its own copy of click or uses the installed one: either way this is its base
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class OneLine(TyperGroup):
    """A command group that says whatever goes wrong in one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt is an exit of its own."""
        try:
            return super().invoke(ctx)
        except Terminated:
            _say("terminated; what had been completed is kept")
            raise typer.Exit(TERMINATED) from None
        except KeyboardInterrupt:
            _say("interrupted; what had been completed is kept")
            raise typer.Exit(130) from None

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and leave with the right exit code."""
        from scenarios.results import ResultError

        standalone = extra.pop("standalone_mode", True)
        extra["standalone_mode"] = False
        try:
            with sigterm_raises():
                code = super().main(*args, **extra)
        except _ClickError as error:
            _say(f"{_sentence(error.format_message())} (see 'raytwin --help')")
            code = 2
        except (UsageError, ResultError) as error:
            _say(str(error))
            code = 2
        except typer.Abort:
            _say("aborted")
            code = 130
        if not standalone:
            return code
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=OneLine,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say(text: str) -> None:
    print(f"raytwin: {' '.join(text.split())}", file=sys.stderr)


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


# -- arguments ---------------------------------------------------------------------


def parse_nodes(text: str | None) -> tuple[int, ...] | None:
    """Return the sizes in ``10`` or ``1,2,4``. Raises UsageError."""
    if text is None:
        return None
    sizes = [parse_number(part.strip(), int) for part in text.split(",")]
    for part, size in zip(text.split(","), sizes, strict=True):
        if size is None or not 1 <= size <= NODES_MAX:
            raise UsageError(
                f"--nodes {part.strip()!r} is no cluster size: give a whole number from 1 to "
                f"{NODES_MAX}, or several with commas between, as in --nodes 1,2,4"
            )
    return tuple(dict.fromkeys(sizes))


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` pairs as a dict. Raises UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(
                f"--set {text!r} is no setting: give name=value, as in --set tasks=1000"
            )
        pairs[key.strip()] = value
    return pairs


def parse_names(text: str | None, known: Sequence[str], what: str) -> list[str] | None:
    """Return the names in a list with commas. Raises UsageError for an unknown one."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"no {what} {name!r}: {did_you_mean(name, known)}")
    return list(dict.fromkeys(names))


def _writable(path: Path) -> Path:
    """Return `path` if a file can be put there. Raises UsageError."""
    from scenarios import results

    if path.is_dir():
        raise UsageError(f"{path} is a directory: give the name of a file")
    probe = path.with_name(f".{path.name}.writable")
    try:
        results.write_file(probe, b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}; give a file in a directory "
            "that exists and is yours"
        ) from error
    return path


Seed = Annotated[int, typer.Option("--seed", min=0, metavar="S", help="Seed of all randomness.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are written.")]


# -- commands ----------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def front(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Run a distributed program for real, predict it in simulation, and set both beside the paper.

    `raytwin reproduce --quick` runs every figure and ends with a report to open in a browser.
    """
    if version:
        from scenarios.host import raytwin_version

        print(f"raytwin {raytwin_version()}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command("list")
def list_scenarios() -> None:
    """List the scenarios, the backends that each supports, and their settings."""
    from rich.table import Table

    from scenarios import registry

    found = registry.scenarios()
    table = Table("scenario", "in the paper", "what", "backends", box=None, pad_edge=False)
    for scenario in found.values():
        table.add_row(scenario.name, scenario.figure, scenario.title, ", ".join(scenario.backends))
    console = _console()
    console.print(table)
    for scenario in found.values():
        for option in scenario.options:
            defaults = f"quick {_typed(option.quick)}, full {_typed(option.full)}"
            text = f"{scenario.name} --set {option.name}=...  {option.help} ({defaults})"
            console.print(_escaped(text), soft_wrap=True)


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="See 'raytwin list'.")],
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help=f"Some of {','.join(BACKENDS)}. Default: all it supports."
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
        Path | None,
        typer.Option(
            metavar="PLAN",
            help="A fault plan (JSON) to apply to every cluster that a scenario starts.",
        ),
    ] = None,
    out: Out = RESULTS,
) -> None:
    """Run scenarios and write DIR/NAME/BACKEND/{result.json,rows.csv,timeline.json}.

    Exits 0 only if every check held.

    Examples: `raytwin run fig8b`;
    `raytwin run fig8b --backend sim --scale full`;
    `raytwin run fig8b --backend local --nodes 1,2,4 --set tasks=20000 --out /tmp/r`
    """
    from scenarios import runner

    jobs = runner.plan(
        names,
        parse_names(backend, BACKENDS, "backend"),
        scale,
        seed,
        parse_nodes(nodes),
        parse_settings(settings or []),
    )
    done = _run(jobs, out, profile, runner.read_plan(faults, jobs))
    print(f"results are in {out}; 'raytwin report {out}' draws them")
    raise typer.Exit(0 if all(each.ok for each in done) else 1)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'raytwin run' wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: DIR/report.html"),
    ] = None,
) -> None:
    """Draw one self-contained HTML file from results.

    Example: `raytwin report results -o report.html`
    """
    from scenarios import registry, results

    found = results.read_all(directory)
    path = _writable(output or directory / "report.html")
    _report(found, registry.scenarios(), path)


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
    """Write one Chrome trace of runs: tasks, transfers, placements, failures, arrows to inputs.

    It opens in Perfetto (ui.perfetto.dev) or in chrome://tracing.

    Example: `raytwin timeline results/fig11a -o fig11a.json`
    """
    from scenarios import results, trace

    folders = trace.find(path)
    target = _writable(output or (path if path.is_dir() else path.parent) / trace.FILE)
    events = trace.combined(folders)
    try:
        results.write_file(target, trace.encode(events))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    count = sum(event["ph"] == "X" for event in events)
    print(f"the trace is {target}: {len(folders)} runs, {count:,} slices, {len(events):,} events")


@app.command()
def reproduce(
    quick: Annotated[bool, typer.Option("--quick", help="The small scale of each.")] = False,
    seed: Seed = 0,
    out: Out = RESULTS,
) -> None:
    """Run every scenario on every backend that it supports, then write the report.

    Example: `raytwin reproduce --quick --out results`
    """
    from scenarios import registry, results, runner

    known = registry.scenarios()
    jobs = runner.plan(list(known), scale="quick" if quick else "full", seed=seed)
    done = _run(jobs, out, None)
    _report(results.read_all(out), known, out / "report.html")
    raise typer.Exit(0 if all(each.ok for each in done) else 1)


@app.command()
def bench(
    peers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help=f"Measure these in the same run: {','.join(PEERS)}."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures here.")
    ] = None,
) -> None:
    """Measure the runtime's basic operations, interleaved with its peers'; medians.

    A ratio is ours to the peer before it, above 1 is better for us. The last column
    is how near ours is to what the machine can do without any runtime.

    Example: `raytwin bench --peers ray,dask --json bench.json`
    """
    from rich.table import Table

    asked = parse_names(peers, PEERS, "peer") or []
    if asked:
        from scenarios.bench.engines import check_peers

        check_peers(asked)
    if json is not None:
        _writable(json)
    from scenarios import progress
    from scenarios.bench import BenchError, run_bench

    with progress.terminal() as shown:
        try:
            found = run_bench(asked, json, shown)
        except BenchError as error:
            _say(str(error))
            raise typer.Exit(1) from error
    columns = [column for peer in asked for column in (peer, "ratio")]
    table = Table("what", "raytwin", *columns, "unit", "of limit", box=None, pad_edge=False)
    for row in found:
        cells = []
        for peer in asked:
            ratio = row["ratios"].get(peer)
            cells += [_plain(row["peers"].get(peer)), "" if ratio is None else f"{ratio:.1f}x"]
        fraction = f"{row['limit']['fraction']:.0%}"
        table.add_row(row["name"], _plain(row["ours"]), *cells, row["unit"], fraction)
    _console().print(table)


@app.command()
def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE")] = Path("profile.json"),
) -> None:
    """Measure what the runtime's operations cost on this machine, for the simulator.

    Example: `raytwin calibrate -o results/profile.json`
    """
    from scenarios import progress, runner

    _writable(output)
    with progress.terminal() as shown:
        runner.calibrate(output, shown)
    print(f"the profile is {output}")


@app.command(
    "exec",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def execute(
    script: Annotated[Path, typer.Argument(help="A Python program that uses Ray.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    backend: Annotated[str, typer.Option(help="sim or local.")] = "local",
    nodes: Annotated[int | None, typer.Option(min=1, max=NODES_MAX)] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=0)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the control plane's choices.")] = None,
    address: Annotated[
        str | None, typer.Option(envvar="RAYTWIN_ADDRESS", help="Join this cluster instead.")
    ] = None,
) -> None:
    """Run an existing Ray script unchanged: its `import ray` is raytwin.

    The options go before what the script gives to `ray.init()`.
    """
    from scenarios.execute import execute as run_script

    leave_sigterm_alone()
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}: {did_you_mean(backend, BACKENDS)}")
    given = {"nodes": nodes, "cpus_per_node": cpus_per_node, "seed": seed}
    options: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    if address and backend == "local" and not options:
        options["address"] = address
    sys.exit(run_script(script, args or [], {"backend": backend, **options}))


@app.command()
def start(
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX)] = 1,
    cpus_per_node: Annotated[int | None, typer.Option(min=0)] = None,
    object_store_memory: Annotated[int | None, typer.Option(help="Bytes per node.")] = None,
) -> None:
    """Keep a cluster for several programs in the foreground, until Ctrl-C.

    Example: `raytwin start --nodes 4 --cpus-per-node 2`
    """
    from scenarios import clusters

    given = {"cpus_per_node": cpus_per_node, "object_store_memory": object_store_memory}
    options = {name: value for name, value in given.items() if value is not None}
    sys.exit(clusters.keep({"nodes": nodes, **options}, lambda text: print(text, flush=True)))


@app.command()
def status(
    address: Annotated[
        str, typer.Option(envvar="RAYTWIN_ADDRESS", help="host:port, or auto: the newest.")
    ] = "auto",
) -> None:
    """Show the nodes, resources and jobs of a cluster that `raytwin start` or a program runs."""
    from rich.table import Table

    from scenarios import clusters

    where, nodes, jobs = clusters.status(address)
    console = _console()
    console.print(f"cluster at {where}")
    for columns, rows in (
        (("node", "state", "free of all", "tasks"), nodes),
        (("job", "state", "process", "namespace", "program"), jobs),
    ):
        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*(_escaped(cell) for cell in row))
        console.print(table)


@app.command()
def doctor() -> None:
    """Try what works on this machine, and say what to install for the rest.

    Exits 0 if the backends local and sim work.
    """
    from scenarios import doctor as diagnosis

    console = _console()
    findings = []
    for finding in diagnosis.examine():
        findings.append(finding)
        mark = "[green]ok     [/]" if finding.ok else "[red]missing[/]"
        fix = "" if finding.ok else f" (for {finding.needed_for}; to get it: {finding.fix})"
        text = _escaped(f"{finding.name}: {finding.detail}{fix}")
        console.print(f"{mark}  {text}", soft_wrap=True)
    raise typer.Exit(0 if diagnosis.healthy(findings) else 1)


# -- shared ------------------------------------------------------------------------


@app.command()
def fuzz(
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="How many seeds to run.")
    ],
    start: Annotated[
        int, typer.Option("--start", min=0, metavar="S", help="The first of them.")
    ] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, metavar="J")] = 1,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="Only plans in which no node dies.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where failing seeds are written.")
    ] = RESULTS,
) -> None:
    """Run random programs under random faults on `sim`, each held to a sequential run.

    A seed that fails is printed and written to DIR/fuzz-SEED.json with its plan;
    the exit code is then 1. `raytwin fuzz --seeds 1 --start SEED` runs it again.

    Example: `raytwin fuzz --seeds 2000 --jobs 2`
    """
    from chaos.campaign import run_seeds, write_failure
    from scenarios import progress, runner

    runner.prepare(out)
    failed = tasks = faults = excused = 0
    with progress.terminal() as shown:
        shown.begin(f"fuzz, seeds {start} to {start + seeds - 1}", seeds)
        for report in run_seeds(range(start, start + seeds), jobs, lossless):
            shown.advance()
            tasks += report.case.program.tasks
            faults += report.faults
            excused += report.excused
            if report.failures:
                failed += 1
                path = write_failure(report, out)
                with shown.aside():
                    print(f"seed {report.case.seed} fails: {report.failures[0]} (see {path})")
    print(
        f"{seeds - failed} of {seeds} seeds hold: {tasks:,} tasks, {faults:,} faults,"
        f" {excused:,} values that were rightly lost"
    )
    raise typer.Exit(1 if failed else 0)


def _run(jobs: Sequence[Any], out: Path, profile: Path | None, faults: Any = None) -> list[Done]:
    """Run `jobs` under a progress bar and print each when it is there."""
    from scenarios import progress, runner

    if profile is not None:
        runner.read_profile(profile)
    runner.prepare(out)
    console = _console()
    with progress.terminal() as shown:
        used = runner.profile_for(jobs, out, profile, shown)

        def after(each: Done) -> None:
            with shown.aside():
                _print(console, each)

        return runner.run(jobs, out, used, shown, after, faults)


def _print(console: Console, done: Done) -> None:
    """Print a run's metrics and checks; what went wrong in full."""
    from rich.table import Table

    if done.result is None:
        console.print(
            f"[bold]{done.job.name}[/] [red]failed[/]: {_escaped(done.error)}", soft_wrap=True
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
            table.add_row(_escaped(name), _plain(value))
        console.print(table)
    for check in record.checks:
        mark = "[green]holds[/]" if check.ok else "[bold red]FAILS[/]"
        detail = f": {check.detail}" if check.detail else ""
        console.print(f"  {mark} {_escaped(check.name + detail)}", soft_wrap=True)
    for finding in record.findings:
        console.print(f"  {_escaped(finding)}", soft_wrap=True)


def _report(found: Sequence[Any], known: Any, path: Path) -> None:
    """Write the report and say where it is."""
    from reports.html import render
    from scenarios import results

    html = render(found, known)
    try:
        results.write_file(path, html.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    print(f"the report is {path}")


def _plain(value: Any) -> str:
    from reports.numbers import show

    return show(value)


def _typed(value: Any) -> str:
    """Return a setting as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def main() -> NoReturn:
    """Run the command line and exit.

    After a script that Ctrl-C has ended as Python does then: by SIGINT, so that a shell
    that runs it ends, too.
    """
    try:
        app(prog_name="raytwin")
    except Interrupted:
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
    raise AssertionError("the command line always exits")
