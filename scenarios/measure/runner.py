"""From what the user asked for to results on disk.

First everything that was asked is checked (`plan`), so a wrong argument costs
nothing; then the machine is calibrated if a run is to be predicted; then the
jobs run one after the other, the simulated ones of a scenario before the real
ones, each written as soon as it is there. A measurement notes the digest of the
prediction that is there when it begins. Of a whole reproduction the predictions
come first, on all cores (`simulate`).
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from raytwin.chaos.faults.plan import Plan, PlanError
from raytwin.chaos.faults.plan_files import load
from raytwin.chaos.toxiproxy.toxiproxy_process import ServerError, find_server
from raytwin.runtime.api import lifecycle
from raytwin.runtime.api.exceptions import RayError
from raytwin.runtime.on_ray import NotOnRay, ray_session
from raytwin.runtime.processes.spawn.pool import forked_pool
from raytwin.scenarios.bench.trees import ROOT, commit_of
from raytwin.scenarios.core import measured_host, results
from raytwin.scenarios.core.results import (
    DRIFT_MAX,
    LOAD_MAX,
    SPREAD_MAX,
    CheckRecord,
    Made,
    Record,
    Result,
    ResultError,
)
from raytwin.scenarios.core.scenario import (
    BACKENDS,
    SCALES,
    Outcome,
    Progress,
    Request,
    Scenario,
    Silent,
    UsageError,
    did_you_mean,
)
from raytwin.scenarios.measure import both_sides, ray_process, registry
from raytwin.scenarios.measure.registry import ALL
from raytwin.scenarios.measure.under_faults import run_under
from raytwin.scenarios.peers import PeerError

PROFILE = "profile.json"


@dataclass(frozen=True)
class Job:
    """One scenario on one backend, all its arguments checked."""

    scenario: Scenario
    backend: str
    scale: str
    seed: int
    nodes: tuple[int, ...] | None
    settings: Mapping[str, Any]
    address: str | None = None
    """Of the Ray cluster that it runs on; None: one of its own."""

    @property
    def name(self) -> str:
        """How users read of it."""
        return f"{self.scenario.name} on {self.backend}"

    @property
    def command(self) -> str:
        """What a shell runs this job with, but for files: a fault plan's, a profile's, results'."""
        words = ["raytwin", "run", self.scenario.run_as, "--backend", self.backend]
        if self.scale != SCALES[0]:
            words += ["--scale", self.scale]
        if self.seed:
            words += ["--seed", str(self.seed)]
        if self.nodes is not None:
            words += ["--nodes", ",".join(map(str, self.nodes))]
        if self.address is not None:
            words += ["--address", self.address]
        for option in self.scenario.options:
            value = self.settings.get(option.name, option.default(self.scale))
            if value != option.default(self.scale):
                told = ",".join(map(str, value)) if option.many else str(value)
                words += ["--set", f"{option.name}={told.lower() if option.type is bool else told}"]
        return shlex.join(words)


@dataclass
class Done:
    """The end of a job: a result, or the error that its scenario raised."""

    job: Job
    elapsed_s: float
    result: Result | None = None
    error: str = ""
    trace: str = ""
    """Where the scenario is broken; "" if the fault plan has ended it, or a peer."""

    @property
    def ok(self) -> bool:
        """Whether it ran and every check held."""
        return self.result is not None and self.result.ok


def plan(
    names: Sequence[str],
    backends: Sequence[str] | None = None,
    scale: str = "quick",
    seed: int = 0,
    nodes: tuple[int, ...] | None = None,
    given: Mapping[str, str] | None = None,
    address: str | None = None,
) -> list[Job]:
    """Return the jobs that this request means.

    `names` are those of scenarios, or paths of files with one;
    `backends` None is all that a scenario supports, but for those of `ON_REQUEST`;
    `given` are settings as typed. Raises UsageError for the first thing that is wrong.
    """
    given = given or {}
    everything = ALL in names
    found = {
        name: registry.find(name)
        for name in dict.fromkeys(registry.names() if everything else names)
    }
    if everything and backends is not None:
        found = {name: each for name, each in found.items() if set(backends) & set(each.backends)}
    for backend in backends or ():
        if backend not in BACKENDS:
            raise UsageError(f"no backend {backend!r}: {did_you_mean(backend, BACKENDS)}")
    if scale not in SCALES:
        raise UsageError(f"no scale {scale!r}: {did_you_mean(scale, SCALES)}")
    chosen = list(found.values())
    for name, scenario in found.items():
        other = next(path for path, each in found.items() if each.name == scenario.name)
        if other != name:
            raise UsageError(f"{other} and {name} call their scenarios {scenario.name!r}: give one"
                             " of them another name")  # fmt: skip
    options = {option.name for scenario in chosen for option in scenario.options}
    for key in given:
        if key not in options:
            asked = ", ".join(scenario.name for scenario in chosen)
            raise UsageError(
                f"{asked} has no setting {key!r}: {did_you_mean(key, sorted(options))}"
            )
    jobs = []
    for scenario in chosen:
        for backend in backends or ():
            if backend not in scenario.backends and not everything:
                why = scenario.not_on_ray if backend == "ray" else ""
                raise UsageError(
                    f"{scenario.name} does not run on {backend!r}: {why + '; ' if why else ''}"
                    f"{did_you_mean(backend, scenario.backends)}"
                )
        sizes = scenario.cluster_sizes
        if sizes and nodes and not set(nodes) <= set(sizes):
            right = " or ".join(map(str, sizes))
            raise UsageError(
                f"{scenario.name} is about {right} nodes: leave --nodes out, or give {right}"
            )
        settings = scenario.settings(scale, given)
        wanted = list(backends or scenario.default_backends)
        if everything:
            wanted = [each for each in wanted if each in scenario.backends]
        jobs += [
            Job(scenario, backend, scale, seed, nodes, settings, address)
            for backend in BACKENDS
            if backend in wanted
        ]
        for backend in wanted:
            most = scenario.nodes_max.get(backend)
            if most is not None and nodes and max(nodes) > most:
                raise UsageError(
                    f"{scenario.name} on {backend} has at most {most} nodes, not {max(nodes)}"
                )
    if address is not None and {job.backend for job in jobs} != {"ray"}:
        raise UsageError("--address is that of a Ray cluster: give --backend ray with it")
    for job in jobs:
        check_backend(job.backend)
    if address is not None:
        try:
            ray_session.check_address(address)
        except NotOnRay as error:
            raise UsageError(str(error)) from error
    return jobs


def check_backend(backend: str) -> None:
    """Raise UsageError if a backend needs what is not there: docker an engine, ray the package."""
    if backend == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError(ray_session.INSTALL)
    if backend == "docker":
        from raytwin.runtime.containers import engine  # the import takes 0.2 s

        try:
            engine.connect().close()
        except engine.NoEngine as error:
            raise UsageError(str(error)) from error


def prepare(out: Path) -> None:
    """Make `out` and see that it can be written. Raises UsageError if not."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        results.write_file(probe, b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write to {out}: {error.strerror or error}; give another directory with --out"
        ) from error


def read_plan(plan: str | None, backends: Iterable[str]) -> Plan | None:
    """Return the fault plan in a file, or of a name, checked against the backends.

    Raises UsageError for what is no plan, or none for one of them, and if it needs Toxiproxy and
    the server that the environment names is none.
    """
    if plan is None:
        return None
    try:
        found = load(plan)
        for backend in backends:
            found.check_backend(backend)
            if backend in found.proxied_on:
                find_server()
    except (PlanError, ServerError) as error:
        raise UsageError(str(error)) from error
    return found


def profile_for(
    jobs: Sequence[Job], out: Path, given: Path | None, progress: Progress
) -> Path | None:
    """Return the profile that these jobs use, measured now if it must be.

    It is `given`, or the one in `out`, or, where a scenario of `jobs` both
    predicts and measures, a new one; None means that nothing is predicted for
    this machine.
    """
    if given is not None:
        read_profile(given)
        return given
    path = out / PROFILE
    if path.exists():
        read_profile(path)
        return path
    if not predict(jobs):
        return None
    calibrate(path, progress)
    return path


def predict(jobs: Sequence[Job]) -> bool:
    """Whether a scenario of these jobs both predicts and measures."""
    backends: dict[str, set[str]] = {}
    for job in jobs:
        backends.setdefault(job.scenario.name, set()).add(job.backend)
    return any({"sim", "local"} <= both for both in backends.values())


def calibrate(path: Path, progress: Progress) -> None:
    """Measure this machine and write its profile to `path`."""
    from raytwin.scenarios.measure.calibrate import calibrate as measure

    profile = measure(progress)
    results.write_file(path, json.dumps(profile, indent=2).encode() + b"\n")


def unsteady(profile: Path) -> str:
    """Say in a line that a machine changed while it was calibrated; nothing if it did not."""
    spread = read_profile(profile).get("spread", 1.0)
    if spread <= SPREAD_MAX:
        return ""
    return (
        f"the machine changed while it was calibrated: the loads of one round took {spread:.1f}"
        f" times as long as those of another, and predictions may be as far off;"
        f" 'raytwin calibrate -o {profile}' measures it anew"
    )


def read_profile(path: Path) -> dict[str, Any]:
    """Return the profile at `path`. Raises UsageError if it is none."""
    try:
        profile = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UsageError(
            f"cannot read profile {path}: {what}; 'raytwin calibrate -o {path}' writes one"
        ) from error
    if not isinstance(profile, dict):
        raise UsageError(f"{path} is not a profile; 'raytwin calibrate -o {path}' writes one")
    return profile


def run(
    jobs: Sequence[Job],
    out: Path,
    profile: Path | None,
    progress: Progress,
    after: Callable[[Done], None],
    faults: Plan | None = None,
) -> list[Done]:
    """Run `jobs`, write each result below `out`, call `after` for each.

    A scenario that raises fails alone, leaves no result, and the others run;
    UsageError ends it all, since it is the user's to mend.
    """
    done = []
    for job in jobs:
        outcome = run_one(job, out, profile, progress, faults)
        done.append(outcome)
        after(outcome)
    return done


def simulate(
    jobs: Sequence[Job],
    out: Path,
    profile: Path | None,
    progress: Progress,
    after: Callable[[Done], None],
) -> list[Done]:
    """Run simulated jobs beside each other, the rest as in `run`.

    What bodies take is timed before, with nothing beside it: no job measures anything after that.
    The first jobs begin first, and each is returned when it ends.
    """
    done: list[Done] = []
    if not jobs:
        return done

    if profile is not None:
        for job in jobs:
            if job.scenario.time_bodies is not None:
                # A body that fails does so in its prediction again, which then fails alone.
                with suppress(CalledProcessError):
                    job.scenario.time_bodies(job.settings)

    def work(number: int) -> tuple[float, Result | None, str, str]:
        ended = run_one(jobs[number], out, profile, Silent())
        return ended.elapsed_s, ended.result, ended.error, ended.trace

    with forked_pool(min(len(jobs), measured_host.cores()), work) as submit:
        running = {submit(number): job for number, job in enumerate(jobs)}
        for ended in as_completed(running):
            try:
                done.append(Done(running[ended], *ended.result()))
            except BrokenProcessPool:
                done.append(Done(running[ended], 0.0, error="a process that simulates was killed"))
            progress.advance()
            after(done[-1])
    return done


def run_one(
    job: Job, out: Path, profile: Path | None, progress: Progress, faults: Plan | None = None
) -> Done:
    """Run one job and write its result below `out`.

    `faults` are applied to each cluster that it starts, from that moment on; what
    was done is in the result's findings and in its timeline, and a check fails if it
    was not all.
    """
    started_s = time.perf_counter()
    try:
        predicted = results.sha256(out, job.scenario.name, "sim") if job.backend != "sim" else None
        result = carry_out(job, profile, progress, faults, predicted)
        results.write(out, result)
    except (UsageError, ResultError):
        raise
    except Exception as error:
        results.discard(out, job.scenario.name, job.backend)
        line = " ".join(str(error).split())
        trace = traceback.format_exc()
        if isinstance(error, PeerError):
            # Its line says all: what is missing, or what another system said.
            trace = ""
        elif faults is not None and isinstance(error, RayError):
            # Nothing is broken but what the plan broke.
            steps, trace = ", ".join(map(str, faults.steps)), ""
            line = f"{line} (with the fault plan: {steps})"
        elapsed_s = time.perf_counter() - started_s
        return Done(job, elapsed_s, error=f"{type(error).__name__}: {line}", trace=trace)
    return Done(job, time.perf_counter() - started_s, result)


def carry_out(
    job: Job,
    profile: Path | None,
    progress: Progress,
    faults: Plan | None = None,
    prediction_sha256: str | None = None,
) -> Result:
    """Run one job and return its result; end what clusters it leaves.

    `prediction_sha256` is kept with the result of a measurement: see `Made`.
    Raises whatever its scenario raises, and UsageError where a cluster is connected already.
    """
    if lifecycle.is_initialized():
        raise UsageError(
            f"a cluster is connected, and {job.scenario.name} starts its own: call shutdown() first"
        )
    progress.begin(job.name)
    request = Request(job.backend, job.scale, job.seed, job.nodes, job.settings, profile, progress)
    others = foreign_load()
    measures = job.backend != "sim"
    speed_before = measured_host.speed() if measures else 0.0
    began, started_s = datetime.now(UTC), time.perf_counter()
    try:
        if job.backend == "ray":
            outcome = ray_process.run(job.scenario.run_as, request, faults, job.address)
        elif job.backend == "sim" and profile is not None and faults is None:
            outcome = both_sides.simulate(job.scenario, request)
        else:
            outcome = run_under(faults, job.scenario, request)
    finally:
        lifecycle.shutdown()
    elapsed_s = time.perf_counter() - started_s
    speed = (speed_before + measured_host.speed()) / 2 if measures else 0.0
    drift = _drift(speed, profile) if measures else 0.0
    if abs(drift) > DRIFT_MAX:
        outcome.findings.append(
            f"The processor was {abs(drift):.0%} {'faster' if drift > 0 else 'slower'} than when"
            " the machine was calibrated: calibrate again."
        )
    if measures and others > LOAD_MAX:
        outcome.findings.append(
            f"Before this run began, other programs kept {others:.0%} of the machine's cores"
            " busy: what was measured is worth less for it."
        )
    result = assemble(job, profile, outcome)
    result.record.made = Made(
        date=began.isoformat(timespec="seconds"),
        commit=commit(),
        command=job.command + (" --faults PLAN" if faults is not None else ""),
        duration_s=round(elapsed_s, 3),
        load=others,
        speed=float(round(speed)),
        drift=round(drift, 3),
        prediction_sha256=prediction_sha256,
    )
    return result


def _drift(speed: float, profile: Path | None) -> float:
    """Return how much faster the processor is than a profile's was, as a share; 0 if that does not
    say, as those of other machines and of older versions of raytwin."""
    calibrated = read_profile(profile).get("speed", 0.0) if profile is not None else 0.0
    return speed / calibrated - 1 if calibrated else 0.0


@cache
def commit() -> str:
    """Return the commit of the raytwin that runs; files that change later run only later."""
    return commit_of(ROOT)


def foreign_load() -> float:
    """Return the share of the cores that is in use now, before a run adds its own."""
    import psutil

    return float(psutil.cpu_percent(interval=0.2)) / 100


def assemble(job: Job, profile: Path | None, outcome: Outcome) -> Result:
    """Return `outcome` with all that is needed to read it; `carry_out` adds when it was made."""
    parameters: dict[str, Any] = {"scale": job.scale}
    if job.nodes is not None:
        parameters["nodes"] = list(job.nodes)
    if profile is not None:
        parameters["profile"] = profile.name
    parameters |= {**job.settings, **outcome.parameters}
    record = Record(
        scenario=job.scenario.name,
        backend=job.backend,
        parameters=parameters,
        seed=job.seed,
        versions=measured_host.versions(*(["ray"] if job.backend == "ray" else []))
        | outcome.versions,
        host=measured_host.describe(),
        metrics={name: float(value) for name, value in outcome.metrics.items()},
        checks=[CheckRecord(c.name, bool(c.ok), c.detail) for c in outcome.checks],
        findings=list(outcome.findings),
        bands=list(outcome.bands),
    )
    return Result(record, outcome.rows, outcome.timeline)
