"""When, where and how results were made: what the report says of itself at its top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raytwin.scenarios.core.results import DRIFT_MAX, LOAD_MAX, Made, Result


@dataclass(frozen=True)
class Provenance:
    """When, where and by which commands all results of a report were made."""

    first: str
    """When the first run began, ISO 8601 without seconds; empty if no result says."""
    last: str
    commits: tuple[str, ...]
    commands: tuple[str, ...]
    """The commands that make the results again; one command has all scenarios of equal options."""
    duration_s: float
    unknown: int
    """Results of older versions, which do not say."""
    hosts: tuple[str, ...]
    disturbed: tuple[str, ...]
    """Results on real processes that began while others used more than `LOAD_MAX`."""
    load_max: float
    """The most that others used before one of these; a share of the cores."""
    drifted: tuple[str, ...]
    """Results beside which the processor's speed was further from that of the calibration than
    `DRIFT_MAX`."""
    drifts: tuple[str, ...]
    """The least and the most of it, such as "32 % slower"; once if they are one."""


def provenance(results: Sequence[Result]) -> Provenance:
    """Return what results say of how they were made."""
    known = [(result, made) for result in results if (made := result.record.made) is not None]
    dates = sorted(made.date[:16].replace("T", " ") for _, made in known)
    disturbed = [
        (result.name, made.load)
        for result, made in known
        if result.record.backend != "sim" and made.load > LOAD_MAX
    ]
    drifted = sorted(
        (made.drift, result.name) for result, made in known if abs(made.drift) > DRIFT_MAX
    )
    return Provenance(
        dates[0] if dates else "",
        dates[-1] if dates else "",
        tuple(dict.fromkeys(made.commit for _, made in known if made.commit)),
        _commands(known),
        sum(made.duration_s for _, made in known),
        len(results) - len(known),
        tuple(dict.fromkeys(_host(result) for result in results)),
        tuple(name for name, _ in disturbed),
        max((load for _, load in disturbed), default=0.0),
        tuple(name for _, name in drifted),
        tuple(dict.fromkeys(_compared(drift) for drift, _ in drifted[:1] + drifted[-1:])),
    )


def _compared(drift: float) -> str:
    return f"{abs(drift) * 100:.0f} % {'faster' if drift > 0 else 'slower'}"


def _commands(known: Sequence[tuple[Result, Made]]) -> tuple[str, ...]:
    """Return commands, each for all scenarios of which the rest is the same."""
    names: dict[tuple[str, str], list[str]] = {}
    for result, made in known:
        scenario = result.record.scenario
        before, found, after = made.command.partition(f" {scenario}")
        if found:
            names.setdefault((before, after), []).append(scenario)
        else:
            names.setdefault((made.command, ""), [])
    return tuple(
        " ".join([before, *dict.fromkeys(some)]) + after for (before, after), some in names.items()
    )


def _host(result: Result) -> str:
    """Return the host of a result in a line."""
    host = result.record.host
    memory = host.get("memory_bytes")
    parts = [
        str(host.get("cpu", "")),
        f"{host['cores']} cores" if "cores" in host else "",
        f"{memory / 1e9:.0f} GB" if isinstance(memory, int | float) else "",
        str(host.get("system", "")),
        f"Python {result.record.versions['python']}" if "python" in result.record.versions else "",
    ]
    return ", ".join(filter(None, parts))
