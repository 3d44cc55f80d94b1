"""Programs of users, and clusters that they share."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raytwin.runtime.api.options.checks import INTEGER_MAX
from raytwin.scenarios.cli.commands.line import (
    NODES_MAX,
    Json,
    app,
    escaped,
    open_console,
    print_json,
)
from raytwin.scenarios.core.scenario import BACKENDS, UsageError, did_you_mean

if TYPE_CHECKING:
    from raytwin.chaos.faults.plan import Plan


@app.command(
    "exec",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def execute(
    script: Annotated[Path, typer.Argument(help="A Python program that uses Ray.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    backend: Annotated[str | None, typer.Option(help="sim, docker or local (the default).")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=NODES_MAX)] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=0)] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=-INTEGER_MAX, max=INTEGER_MAX, help="Of the control plane's choices."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Join this cluster instead: host:port, or auto: the newest; local: join none. "
            "Without any option RAYTWIN_ADDRESS counts, as for any program."
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="A fault plan to apply to every cluster that the script starts: a YAML or JSON"
            " file, or a name; see 'raytwin plan'. How the cluster recovered goes to stderr.",
        ),
    ] = None,
) -> None:
    """Run an existing Ray script unchanged: its `import ray` is raytwin.

    The options go before what the script gives to `ray.init()`. With --faults the number of nodes
    is by default what the plan needs, and the exit code is the script's, or 1 if that is 0 and
    the plan expected something else, or was not carried out.

    Example: `raytwin exec --faults spot --backend sim script.py`
    """
    from raytwin.scenarios.cli import clusters
    from raytwin.scenarios.cli.execute import execute as run_script

    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a script that runs by itself
    if backend == "ray":
        raise UsageError(
            "exec runs a Ray script on raytwin: 'python SCRIPT' runs it on Ray, and"
            " 'RAYTWIN_ON_RAY=1 python SCRIPT' one that imports raytwin"
        )
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}: {did_you_mean(backend, BACKENDS)}")
    if backend is not None:
        from raytwin.scenarios.measure.runner import check_backend

        check_backend(backend)
    given = {"backend": backend, "nodes": nodes, "cpus_per_node": cpus_per_node, "seed": seed}
    options: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    if faults is not None:
        from raytwin.scenarios.cli.execute_under_faults import execute_under_faults

        plan = _read_plan(faults, backend or "local", nodes, address)
        options = {"nodes": plan.nodes(), **options, "address": "local"}
        sys.exit(execute_under_faults(script, args or [], options, plan))
    if address is not None:
        if address != "local":
            clusters.check_joinable(address, options)
        options["address"] = address
    sys.exit(run_script(script, args or [], options))


def _read_plan(faults: str, backend: str, nodes: int | None, address: str | None) -> Plan:
    """Return the fault plan of an option. Raises UsageError if it cannot be for this cluster."""
    from raytwin.scenarios.measure.runner import read_plan

    if address not in (None, "local"):
        raise UsageError(
            f"--faults breaks a cluster that the script starts, not the one at {address!r}: leave"
            " --address out"
        )
    plan = read_plan(faults, [backend])
    assert plan is not None
    if nodes is not None and nodes < plan.nodes():
        raise UsageError(f"the plan {faults} names node {plan.nodes() - 1}: give --nodes"
                         f" {plan.nodes()} or more, or leave it out")  # fmt: skip
    return plan


@app.command()
def plan(
    faults: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN]", help="A YAML or JSON file, or a name. Default: list them."
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of plans, for editors.")
    ] = False,
) -> None:
    """Check a fault plan and print it as sentences; without one list those that have names.

    The last lines say which backends can carry it out. Exits 2 if it is no plan.

    Example: `raytwin plan rolling`
    """
    from raytwin.chaos.faults import cluster_operations, plan_files, plan_schema
    from raytwin.chaos.faults.plan import PlanError

    if schema:
        if faults is not None:
            raise UsageError(f"--schema is of every plan: leave {faults} out")
        print(plan_schema.text(), end="")
        return
    if faults is None:
        for name in plan_files.ready_plans():
            print(f"{name:<12} {plan_files.description(name)}")
        return
    try:
        found = plan_files.load(faults)
    except PlanError as error:
        raise UsageError(str(error)) from error
    print("\n".join(found.sentences()))
    print(f"It needs {found.nodes()} nodes or more at its start.")
    for backend in cluster_operations.CLUSTERS:
        try:
            found.check_backend(backend)
            print(f"{backend} can carry it out.")
        except PlanError as error:
            print(f"{backend} cannot: {error}.")


@app.command()
def start(
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX)] = 1,
    cpus_per_node: Annotated[int | None, typer.Option(min=0)] = None,
    object_store_memory: Annotated[int | None, typer.Option(help="Bytes per node.")] = None,
) -> None:
    """Keep a cluster for several programs in the foreground, until Ctrl-C.

    Example: `raytwin start --nodes 4 --cpus-per-node 2`
    """
    from raytwin.scenarios.cli import clusters

    given = {"cpus_per_node": cpus_per_node, "object_store_memory": object_store_memory}
    options = {name: value for name, value in given.items() if value is not None}
    sys.exit(clusters.keep({"nodes": nodes, **options}, lambda text: print(text, flush=True)))


@app.command()
def status(
    address: Annotated[
        str, typer.Option(envvar="RAYTWIN_ADDRESS", help="host:port, or auto: the newest.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Show the nodes, resources and jobs of a cluster that `raytwin start` or a program runs."""
    from rich.table import Table

    from raytwin.scenarios.cli import clusters

    where, nodes, jobs = clusters.status(address)
    tables = {
        "nodes": (("node", "state", "free of all", "tasks"), nodes),
        "jobs": (("job", "state", "process", "namespace", "program"), jobs),
    }
    if as_json:
        rows_of = {
            name: [dict(zip(columns, row, strict=True)) for row in rows]
            for name, (columns, rows) in tables.items()
        }
        print_json({"address": where, **rows_of})
        return
    console = open_console()
    console.print(f"cluster at {where}")
    for columns, rows in tables.values():
        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*(escaped(cell) for cell in row))
        console.print(table)
