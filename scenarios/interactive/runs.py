"""``raytwin.run`` and ``raytwin.load``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.faults.plan_files import read
from raytwin.runtime.api import modules
from raytwin.scenarios.cli import progress
from raytwin.scenarios.cli.commands.line import parse_nodes
from raytwin.scenarios.core import results, run_trace
from raytwin.scenarios.core.results import ResultError
from raytwin.scenarios.core.scenario import Scenario, UsageError
from raytwin.scenarios.interactive.finished import Run
from raytwin.scenarios.measure import registry, runner


def run(
    scenario: str,
    *,
    backend: str = "sim",
    nodes: int | Sequence[int] | None = None,
    scale: str = "quick",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    faults: Plan | Mapping[str, Any] | Sequence[Any] | Path | str | None = None,
    profile: Path | str | None = None,
    address: str | None = None,
) -> Run:
    """Run a scenario on one backend and return its rows, metrics and checks.

    - ``scenario``: a name that ``raytwin list`` has, or the path of a Python file with a
      ``SCENARIO``;
    - ``backend``: ``sim``, ``local``, ``docker`` or ``ray``;
    - ``nodes``: the size of the cluster, or several; default: the scenario's own;
    - ``scale``: ``quick`` or ``full``; ``seed``: of all randomness;
    - ``settings``: by name, what ``--set`` changes on the command line: ``raytwin list`` has them;
    - ``faults``: a plan for every cluster that the scenario starts: a name (``raytwin plan`` lists
      them), a path, or data: ``{"steps": [...], "expect": [...]}``, or the list of steps alone;
    - ``profile``: a file of costs that ``raytwin calibrate`` has written, for ``sim`` to predict
      this machine with; default: the paper's cluster;
    - ``address``: of a Ray cluster, with the backend ``ray``.

    A check that does not hold raises nothing: see `Run.ok`. What raises: UsageError or PlanError,
    both of them ValueErrors of one line, for what cannot be; and whatever the scenario raises.
    """
    if modules.on_ray():
        raise UsageError(
            f"this process is on Ray ({modules.ON_RAY} is set): run() is for one that is not, where"
            " backend='ray' starts another"
        )
    if scenario == registry.ALL:
        raise UsageError("run() is of one scenario: give its name, or a file")
    sizes = parse_nodes(None if nodes is None else _typed(nodes))
    typed = {name: _typed(value) for name, value in (settings or {}).items()}
    (job,) = runner.plan([str(scenario)], [backend], scale, seed, sizes, typed, address)
    plan = None
    if faults is not None:
        plan = read(faults)
        plan.check_backend(backend)
    if profile is not None:
        runner.read_profile(Path(profile))
    with progress.terminal() as shown:
        result = runner.carry_out(job, Path(profile) if profile is not None else None, shown, plan)
    return Run(result, job.scenario)


def _typed(value: Any) -> str:
    """Return a setting as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def load(directory: Path | str, *, scenario: Path | str | None = None) -> Run:
    """Return a run that ``raytwin run`` or `Run.save` has written.

    ``directory`` is ``DIR/<scenario>/<backend>``, or one above it that has no other run in it.
    ``scenario``: the file of its scenario, which says how to draw the run, where that is in no
    package. Raises ResultError, a line, for what is no run, and UsageError for a file without a
    scenario.
    """
    folders = run_trace.find(Path(directory))
    if len(folders) > 1:
        names = ", ".join(str(each.relative_to(Path(directory).resolve())) for each in folders)
        raise ResultError(f"{directory} has several runs: give the directory of one ({names})")
    result = results.read(folders[0])
    name = result.record.scenario
    return Run(result, _scenario_of(name, None if scenario is None else str(scenario)))


def _scenario_of(name: str, file: str | None) -> Scenario | None:
    """Return the scenario of a name, if it is known or in a file. Raises UsageError."""
    if file is None:
        return registry.find(name) if name in registry.names() else None
    found = registry.find(file)
    if found.name != name:
        raise UsageError(f"the run is of {name!r}, and {file} has the scenario {found.name!r}")
    return found
