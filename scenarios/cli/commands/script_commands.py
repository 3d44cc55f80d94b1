"""Programs of users, and clusters that they share."""

from __future__ import annotations

import math
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raytwin.runtime.api.options.checks import INTEGER_MAX
from raytwin.runtime.api.options.init_options import check_directory
from raytwin.scenarios.cli import values
from raytwin.scenarios.cli.commands.line import (
    NODES_MAX,
    HostsPerRack,
    Json,
    Oversubscription,
    app,
    escaped,
    open_console,
    parse_names,
    parse_nodes,
    print_json,
    say,
    writable,
)
from raytwin.scenarios.core.scenario import BACKENDS, UsageError, did_you_mean

if TYPE_CHECKING:
    from raytwin.chaos.faults.plan import Plan
    from raytwin.scenarios.workloads.recordings.imported_graph import Imported
    from raytwin.simulator.cluster.cluster_usage import Usage

RECORDING = ".json"
"""How the name of a recording's file ends."""
PROGRAM = "A Python program that uses Ray, or a recording: a file that ends with .json."


@app.command(
    "exec",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def execute(
    script: Annotated[Path, typer.Argument(help=PROGRAM)],
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
            autocompletion=values.plans,
            help="A fault plan to apply to every cluster that the script starts: a YAML or JSON"
            " file, or a name; see 'raytwin plan'. How the cluster recovered goes to stderr.",
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="On sim, what the bodies of tasks cost: measured, the CPU time that they take here"
            " (the default), declared, their sleeps alone: the same in each run, or recorded.",
        ),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(help="On sim, what 'raytwin record' has written: bodies cost what they did."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="On sim, what the runtime costs: paper (the default), or a file that"
            " 'raytwin calibrate' has written."
        ),
    ] = None,
    nodes_per_host: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=NODES_MAX,
            metavar="N",
            help="On sim, how many nodes share the cores and the network of one machine: 1 (the"
            " default), or as many as --nodes, to predict local.",
        ),
    ] = None,
    hosts_per_rack: HostsPerRack = None,
    oversubscription: Oversubscription = None,
    host_speeds: Annotated[
        str | None,
        typer.Option(
            metavar="X,...",
            help="On sim, the speed of each machine's cores, over that of the profile's.",
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="With --faults: also write how it recovered here. The report shows what is called"
            " recovery*.json beside results.",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="The scheduling policy: a name, or an import path.")
    ] = None,
    usage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write what was used here, as JSON: on sim of the simulated resources, on"
            " local of this machine's CPU time, by the cluster and by what else ran.",
        ),
    ] = None,
    gcs_storage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The head keeps its state here, and starts again if it is killed."
        ),
    ] = None,
    spill_wait_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="S",
            help="The threshold of bottom-up policies: a node keeps a task while its queue is less"
            " than so many seconds of work (default 0.02).",
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="On real processes: write here every turn of the head, the nodes and the replicas,"
            " a file each, for 'raytwin replay --component'.",
        ),
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Of a recording: multiply what its bodies take, and nothing else."
        ),
    ] = None,
    size_scale: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Of a recording: multiply the bytes of its values. The factor of --time-scale"
            " keeps transfers as long beside the bodies as they were.",
        ),
    ] = None,
) -> None:
    """Run an existing Ray script unchanged: its `import ray` is raytwin. Or run a recording.

    The options go before what the script gives to `ray.init()`. On sim the script and its tasks
    see virtual time; what they have used, and what saturates, goes to stderr. With --faults the
    number of nodes is by default what the plan needs, and the exit code is the script's, or 1 if
    that is 0 and the plan expected something else, or was not carried out.

    A recording, a file that ends with .json, is a program by itself: what 'raytwin record' or
    'raytwin import' has written runs on any backend, by default on as many nodes as it was recorded
    on, and takes what it took then, times --time-scale.

    Example: `raytwin exec --faults spot --backend sim script.py`
    Example: `raytwin exec --time-scale 0.001 --size-scale 0.001 graph.json`
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
    if spill_wait_s == math.inf:
        raise UsageError("--spill-wait-s inf: give a number of seconds")
    if spill_wait_s is not None and address not in (None, "local"):
        raise UsageError(
            "--spill-wait-s is for a cluster that the script starts: leave --address out"
        )
    given = {
        "backend": backend, "nodes": nodes, "cpus_per_node": cpus_per_node, "seed": seed,
        "policy": policy, "gcs_storage": gcs_storage,
        "timers": None if spill_wait_s is None else {"spill_wait_s": spill_wait_s},
    }  # fmt: skip
    options: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    if journal is not None:
        options["journal"] = _journals(journal, backend)
    _policies(policy)
    if address not in (None, "local") and faults is None:
        clusters.check_joinable(address, options)
    graph = script.suffix == RECORDING
    if graph:
        if args or cost is not None or recording is not None:
            raise UsageError(
                f"{script} is a recording: it has its own costs and takes no arguments; options of"
                " exec go before it"
            )
        cost = "declared" if backend == "sim" else None
    for option, scale in ("--time-scale", time_scale), ("--size-scale", size_scale):
        if scale is not None and not graph:
            raise UsageError(f"{option} is for a recording, a .json file of 'raytwin record'")
        if scale is not None and not 0 < scale < math.inf:
            raise UsageError(f"{option} {scale} is no factor: give a number above 0, as 0.1")
    if backend == "sim":
        options |= _sim_options(cost, recording, profile)
        hosts = {
            "nodes_per_host": nodes_per_host, "hosts_per_rack": hosts_per_rack,
            "oversubscription": oversubscription, "host_speeds": _numbers(host_speeds),
        }  # fmt: skip
        options |= {name: value for name, value in hosts.items() if value is not None}
        _check_racks(hosts_per_rack, oversubscription)
    else:
        simulated = {
            "--cost": cost, "--recording": recording, "--profile": profile,
            "--nodes-per-host": nodes_per_host, "--hosts-per-rack": hosts_per_rack,
            "--oversubscription": oversubscription, "--host-speeds": host_speeds,
        }  # fmt: skip
        for name, value in simulated.items():
            if value is not None:
                raise UsageError(f"{name} is for what is simulated: give --backend sim")
        if usage is not None and (backend == "docker" or address not in (None, "local")):
            raise UsageError(
                "--usage is of a cluster whose processes the script starts: on sim and local,"
                " without --address"
            )
    if json is not None:
        if faults is None:
            raise UsageError("--json is the recovery of --faults PLAN: give both")
        json = writable(json.resolve())
    plan = None
    if faults is not None:
        plan = _read_plan(faults, backend or "local", nodes, address)
        options = {"nodes": plan.nodes(), **options, "address": "local"}
    elif address is not None:
        options["address"] = address
    if graph:
        run = _playing(script, options, time_scale or 1.0, size_scale or 1.0)
    else:
        run = partial(run_script, script, args or [], options)
    if plan is not None:
        from raytwin.scenarios.cli.execute_under_faults import execute_under_faults

        run = partial(execute_under_faults, run, script, backend or "local", plan, json)
    if usage is not None:
        usage = writable(usage.resolve())  # the script may change the directory
    if backend == "sim":
        from raytwin.scenarios.cli.predict import predict

        sys.exit(predict(run, seed or 0, usage))
    if usage is not None:
        from raytwin.scenarios.cli.machine_use import measured

        run = partial(measured, run, usage)
    sys.exit(run())


def _playing(
    graph: Path, options: dict[str, Any], time_scale: float, size_scale: float
) -> Callable[[], int]:
    """Return what runs a recording. Raises UsageError if it cannot, on these nodes or on any."""
    from raytwin.scenarios.cli.play import play, read
    from raytwin.simulator.machine.costs import load_profile

    if options.get("address", "local") != "local":
        raise UsageError(f"{graph} runs on a cluster of its own: leave --address out")
    recording, cluster = read(graph, options.get("nodes"), options.pop("cpus_per_node", None))
    cpu_scale = 1.0
    if options.get("backend") == "sim":
        cpu_scale = load_profile(options.get("profile", "paper")).body_scale
    options = {**options, **cluster, "address": "local"}
    return partial(play, recording, options, time_scale, cpu_scale, size_scale)


def _journals(directory: Path, backend: str | None) -> str:
    """Return the directory of the journals of a run, as an option. Raises UsageError."""
    if backend == "sim":
        raise UsageError(
            "--journal is of real processes: a simulation runs in this one, and a debugger can stop"
            " it anywhere"
        )
    directory = directory.resolve()  # the script may change the directory
    try:
        check_directory("--journal", directory, make=True)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return str(directory)


def _policies(given: str | None) -> list[str]:
    """Return the names and import paths of policies. Raises UsageError for an unknown name."""
    from raytwin.runtime.control.scheduling.policies import POLICIES

    names = _parts(given)
    for name in names:
        if ":" not in name:  # else an import path
            parse_names(name, sorted(POLICIES), "policy")
    return names


def _sim_options(cost: str | None, recording: Path | None, profile: str | None) -> dict[str, Any]:
    """Return the options of ``init()`` for a prediction. Raises UsageError for bad ones."""
    from raytwin.runtime.session.recording import load
    from raytwin.simulator.machine.costs import load_profile
    from raytwin.simulator.programs.body_costs import BodyCost

    costs = [each.value for each in BodyCost]
    recorded = BodyCost.RECORDED.value
    if cost is not None and cost not in costs:
        raise UsageError(f"no cost {cost!r}: {did_you_mean(cost, costs)}")
    if recording is None and cost == recorded:
        raise UsageError("--cost recorded needs --recording FILE: 'raytwin record' writes one")
    if recording is not None and cost not in (None, recorded):
        raise UsageError(f"--recording is for --cost recorded, not for --cost {cost}")
    options: dict[str, Any] = {"cost": cost or BodyCost.MEASURED.value}
    try:
        if recording is not None:
            load(recording)
            options |= {"cost": recorded, "recording": recording}
        if profile is not None:
            load_profile(profile)
            options["profile"] = profile
    except ValueError as error:
        raise UsageError(str(error)) from error
    return options


def _check_racks(hosts_per_rack: int | None, oversubscription: float | None) -> None:
    """Raise UsageError if there are uplinks without racks."""
    if oversubscription is not None and hosts_per_rack is None:
        raise UsageError("--oversubscription is of the uplinks of racks: give --hosts-per-rack")


def _numbers(text: str | None) -> list[float] | None:
    """Return the speeds of an option. Raises UsageError."""
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each < math.inf for each in found):
        raise UsageError(
            f"--host-speeds {text!r}: give a number above 0 for each machine, as 1,0.5"
        )
    return found


def _parts(text: str | None) -> list[str]:
    """Return the parts of a list with commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(","))) if text else []


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


@app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def record(
    script: Annotated[Path, typer.Argument(help="A Python program that uses Ray.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "recording.json"
    ),
    nodes: Annotated[int | None, typer.Option(min=1, max=NODES_MAX)] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=0)] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="local (the default), or ray: Ray itself.")
    ] = "local",
) -> None:
    """Run a script on real processes, and write what it did as a graph.

    The file has its tasks, actors, calls and puts: their parents, inputs, sizes, times, and what
    each body did by itself. 'raytwin exec --backend sim --recording FILE' predicts with it.

    With --backend ray the script runs on a Ray cluster that is started for it on this machine. The
    graph has what the driver has submitted, put and waited for, and Ray's times of each task; what
    it lacks is said at the end.

    Examples: `raytwin record -o pipeline.json pipeline.py`;
    `raytwin record --backend ray -o pipeline.json pipeline.py`
    """
    from raytwin.scenarios.cli.record import SUMMARY
    from raytwin.scenarios.cli.record import record as run_recorded

    if backend not in ("local", "ray"):
        raise UsageError(f"nothing is recorded on {backend!r}: there are local and ray")
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a script that runs by itself
    output = writable(output.resolve())  # the script may change the directory
    if backend == "ray":
        from raytwin.scenarios.measure.runner import check_backend

        check_backend(backend)
        from raytwin.scenarios.cli import record_on_ray

        if not script.is_file():
            raise UsageError(f"cannot read the script {script}: no such file")
        settings = record_on_ray.Settings(str(output), nodes, cpus_per_node)
        record_on_ray.start(settings, script, args or [])
    given = {"backend": "local", "address": "local", "nodes": nodes, "cpus_per_node": cpus_per_node}
    options = {name: value for name, value in given.items() if value is not None}
    code, found = run_recorded(script, args or [], options)
    if found is None:
        raise UsageError(f"{script} has started no cluster: there is nothing to record")
    output.write_bytes(found.to_json())
    print(
        f"{SUMMARY} {len(found.bodies):,} tasks and calls in {found.makespan_s:.4g} s: {output}",
        file=sys.stderr,
    )
    sys.exit(code)


@app.command("import")
def import_(
    form: Annotated[
        str, typer.Argument(metavar="FORMAT", help="wfcommons, alibaba or ray-timeline.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="A workflow instance of WfCommons (WfFormat 1.5 or 1.6), batch_task.csv of"
            " Alibaba's trace of 2018, or what ray.timeline() has written."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "recording.json"
    ),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of alibaba: the first N jobs (default 100)."),
    ] = None,
) -> None:
    """Write a trace from elsewhere as a recording, which 'raytwin exec' and 'raytwin whatif' take.

    Says what the trace lacks. Times are those of the trace: on real processes --time-scale makes
    them short.

    Example: `raytwin import wfcommons montage.json -o graph.json`
    """
    from raytwin.scenarios.workloads.recordings import (
        imported_alibaba,
        imported_ray_timeline,
        imported_wfcommons,
    )
    from raytwin.scenarios.workloads.recordings.imported_graph import TraceError

    readers: dict[str, Callable[[Path], Imported]] = {
        "wfcommons": imported_wfcommons.read,
        "alibaba": partial(imported_alibaba.read, jobs=jobs or imported_alibaba.JOBS),
        "ray-timeline": imported_ray_timeline.read,
    }
    if form not in readers:
        raise UsageError(f"no format {form!r}: {did_you_mean(form, readers)}")
    if jobs is not None and form != "alibaba":
        raise UsageError(f"--jobs is of alibaba: a file of {form} has one")
    output = writable(output)
    try:
        found = readers[form](file)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    except TraceError as error:
        raise UsageError(str(error)) from error
    output.write_bytes(found.recording.to_json())
    recording = found.recording
    # A workflow that was made up never ran.
    took = f" makespan {recording.makespan_s:.4g} s," if recording.makespan_s else ""
    say(
        f"{len(recording.bodies):,} tasks and calls,{took} nodes {len(recording.nodes):,}: {output}"
    )
    for lack in found.lacks:
        say(lack)


@app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def whatif(
    script: Annotated[Path, typer.Argument(help=PROGRAM)],
    args: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="N,...", help="How many nodes, as in 10,100,1000.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="T,...", help="Between two hosts, as in 0.1ms,10ms.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="P,...", help="Scheduling policies: names.")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(metavar="PLAN,...", help="Fault plans, as in none,spot; see 'raytwin plan'."),
    ] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=0)] = None,
    hosts_per_rack: HostsPerRack = None,
    oversubscription: Oversubscription = None,
    seed: Annotated[int | None, typer.Option(min=-INTEGER_MAX, max=INTEGER_MAX)] = None,
    cost: Annotated[str | None, typer.Option(help="As of 'raytwin exec'.")] = None,
    recording: Annotated[Path | None, typer.Option(help="As of 'raytwin exec'.")] = None,
    profile: Annotated[str, typer.Option(help="As of 'raytwin exec'.")] = "paper",
    price: Annotated[
        float | None, typer.Option(metavar="P", help="Of a node for an hour: adds the cost.")
    ] = None,
    deaths: Annotated[
        bool,
        typer.Option(
            "--deaths",
            help="Also kill, at half of the makespan, a node of each kind (the driver's has none),"
            " and the head.",
        ),
    ] = False,
    measure: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Then run it N times on each of these clusters, on this machine, and compare. All"
            " nodes share its cores in the predictions, too. Needs its --profile. Without --cost"
            " and --recording a script is recorded, on the fewest nodes, and predicted anew before"
            " each time; with --cost measured it is predicted anew.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Also as a page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict a script or a recording on several clusters: what if there were more nodes?

    Each combination of what is varied is a run of 'raytwin exec --backend sim' of its own. Prints
    a table, and what it comes to: the knee of the curve, what a death costs, which policy wins, and
    where a prediction depends on the local schedulers' threshold.
    With --measure also how far the predictions are from this machine; they are printed before.

    Example: `raytwin whatif --nodes 1,10,100 --latency 0.1ms,10ms script.py`
    """
    from raytwin.scenarios.cli import what_if
    from raytwin.scenarios.cli.progress import terminal
    from raytwin.simulator.programs.body_costs import BodyCost

    _sim_options(cost, recording, profile)
    _check_racks(hosts_per_rack, oversubscription)
    if measure is not None and hosts_per_rack is not None:
        raise UsageError("--measure runs all nodes on this machine: leave --hosts-per-rack out")
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(f"--price {price} is no price: give what a node costs for an hour, as 0.5")
    if output is not None:
        output = writable(output.resolve())
    policies = _policies(policy)
    choices = what_if.Choices(parse_nodes(nodes) or (), _parts(latency), policies, _parts(faults))
    if measure is not None:
        what_if.check_measurable(choices, profile)
    records = cost is None and recording is None and script.suffix != RECORDING
    everywhere = {"--cpus-per-node": cpus_per_node, "--seed": seed}
    victims = _kinds_of_nodes(script, cpus_per_node) if deaths else None
    with terminal() as progress, TemporaryDirectory(prefix="raytwin-") as folder:
        recorded_anew = Path(folder) / "recording.json" if measure is not None and records else None
        simulated = {
            **everywhere, "--cost": cost, "--recording": recorded_anew or recording,
            "--nodes-per-host": None if measure is None else NODES_MAX,
            "--hosts-per-rack": hosts_per_rack, "--oversubscription": oversubscription,
        }  # fmt: skip

        def predict(deaths_of: Callable[[Usage], Sequence[int]] | None) -> what_if.Found:
            if recorded_anew is not None:
                progress.begin(f"recording {script}", 1)
                fewest = min(choices.nodes, default=None)
                what_if.record(script, args or [], fewest, cpus_per_node, recorded_anew)
            return what_if.predict(
                script, args or [], choices, _given(simulated), profile, progress, price, deaths_of
            )

        found = predict(victims)
        if measure is not None:
            changes = recorded_anew is not None or cost == BodyCost.MEASURED.value
            found.points = what_if.measure(
                script, args or [], found.points,
                (lambda: predict(None).points) if changes else None,
                _given(everywhere), measure, progress,
            )  # fmt: skip
    if output is not None:
        from raytwin.reports import what_if as page

        command = shlex.join(["raytwin", *sys.argv[1:]])
        output.write_text(page.render(what_if.page(script.name, command, found)), encoding="utf-8")
    if as_json:
        print_json(
            {
                "points": [{**asdict(each), "error": each.error} for each in found.points],
                "deaths": [asdict(each) for each in found.deaths],
                "findings": what_if.findings(found),
            }
        )
        return
    console = open_console()
    console.print(_table(*what_if.rows(found.points)))
    if found.deaths:
        console.print()
        console.print(_table(*what_if.death_rows(found.deaths)))
    console.print()
    for sentence in what_if.findings(found):
        console.print(escaped(sentence))
    if output is not None:
        console.print(escaped(f"The page: {output}"))


def _given(options: Mapping[str, object]) -> list[str]:
    """Return the options of a command line that have a value."""
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table

    shown = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        shown.add_row(*(escaped(cell) for cell in row))
    return shown


def _kinds_of_nodes(program: Path, cpus: int | None) -> Callable[[Usage], Sequence[int]]:
    """Return a function that returns the last node of each kind, without the driver's.

    Those of a script are all of one kind, those of a recording have what they were recorded with.
    """

    def last(used: Usage) -> Sequence[int]:
        if program.suffix != RECORDING:
            return [used.nodes - 1] if used.nodes > 1 else []
        from raytwin.scenarios.cli.play import read

        _, options = read(program, used.nodes, cpus)
        kinds = {tuple(sorted(node.items())): at for at, node in enumerate(options["nodes"])}
        return [at for at in kinds.values() if at > 0]

    return last


@app.command()
def plan(
    faults: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN]",
            help="A YAML or JSON file, or a name. Default: list them.",
            autocompletion=values.plans,
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
    from raytwin.chaos.toxiproxy import toxiproxy_process

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
    print("\n".join(found.needs()))
    for backend in cluster_operations.CLUSTERS:
        try:
            found.check_backend(backend)
            print(f"{backend} can carry it out.")
        except PlanError as error:
            print(f"{backend} cannot: {error}.")
    try:
        if found.proxied_on and toxiproxy_process.find_server() is None:
            print(f"{toxiproxy_process.NOT_INSTALLED}.")
    except toxiproxy_process.ServerError as error:
        raise UsageError(str(error)) from error


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
