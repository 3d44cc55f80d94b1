"""The actions of fault plans: their parameters, and what each does in words.

Everything that says what a step may contain is made from this table: the checks, the
schema, the sentences of a printed plan.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raytwin.chaos.faults.parameters import (
    FACTOR,
    KIND,
    LOSS,
    MILLISECONDS,
    NBYTES,
    ONE_WAY,
    PROBABILITY,
    RESET_KIND,
    RESOURCES,
    SEED,
    SETS,
    SKEW,
    Parameter,
)
from raytwin.simulator.machine.frame_faults import ANY_KIND


def instead(word: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown word: the nearest known one, and all."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}possible: {', '.join(names) or 'none'}"


@dataclass(frozen=True)
class Action:
    """An action: its sentence, with the target's words for ``{}``, and its parameters."""

    sentence: str
    parameters: Mapping[str, Parameter]
    details: Callable[[Mapping[str, Any]], str] = lambda given: ""
    """Returns the end of the sentence, from the parameters."""

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a step. Raises ParameterError for wrong ones."""
        for name in given:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                right = f"it takes {known}" if known else "it takes none"
                raise ParameterError(name, f"no parameter {name!r}: {right}")
        checked = {}
        for name, parameter in self.parameters.items():
            if name not in given and not parameter.required:
                continue
            if name not in given or not parameter.valid(given[name]):
                near = difflib.get_close_matches(str(given.get(name)), parameter.choices, n=1)
                hint = f": did you mean {near[0]!r}?" if near else ""
                raise ParameterError(name, f"give {name}, {parameter.form}{hint}")
            checked[name] = parameter.convert(given[name])
        return checked


class ParameterError(ValueError):
    """A parameter or a bound is missing, unknown or wrong; no name: any bound would do."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _latency(given: Mapping[str, Any]) -> str:
    latency = f"{_number(given['latency_ms'])} ms" if given["latency_ms"] else "its own"
    jitter = f" ± up to {_number(given['jitter_ms'])} ms" if given.get("jitter_ms") else ""
    return latency + jitter


def _sides(given: Mapping[str, Any]) -> str:
    sets = given["sets"]
    if given.get("one_way"):
        heard = " or ".join(", ".join(part) for part in sets[1:])
        return f"nothing from {', '.join(sets[0])} reaches {heard}"
    return " | ".join(", ".join(part) for part in sets)


def _share(given: Mapping[str, Any]) -> str:
    kind = "every kind" if given["kind"] == ANY_KIND else given["kind"]
    return f"{given['probability']:.4g} of the frames with messages of {kind}"


def _delayed(given: Mapping[str, Any]) -> str:
    return f"{_share(given)}, by {_number(given['delay_ms'])} ms"


def _resources(given: Mapping[str, Any]) -> str:
    amounts = ", ".join(f"{n} {_number(v)}" for n, v in given.get("resources", {}).items())
    return f"with {amounts}" if amounts else "with the resources of node 0"


def _skew(given: Mapping[str, Any]) -> str:
    return f"{_number(abs(given['skew_ms']))} ms {'back' if given['skew_ms'] < 0 else 'ahead'}"


def _swizzle(given: Mapping[str, Any]) -> str:
    return f"over {_number(given['over_s'])} s each, drawn from seed {given.get('seed', 0)}"


ACTIONS: dict[str, Action] = {
    "kill": Action("kill {}", {}),
    "restart": Action("start {} again, empty", {}),
    "pause": Action("suspend {}", {}),
    "resume": Action("resume {}", {}),
    "remove_node": Action("end {} for good", {}),
    "add_node": Action("add a node to {}", {"resources": RESOURCES}, _resources),
    "latency": Action(
        "set the latency of {} to",
        {"latency_ms": MILLISECONDS, "jitter_ms": replace(MILLISECONDS, required=False)},
        _latency,
    ),
    "bandwidth": Action(
        "limit the bandwidth of {} to",
        {"bytes_per_s": FACTOR},
        lambda given: f"{_number(given['bytes_per_s'])} bytes/s",
    ),
    "loss": Action(
        "lose, of {},",
        {"probability": LOSS},
        lambda given: f"{given['probability']:.4g} of the packets",
    ),
    "reset": Action(
        "close the connections of {}, by",
        {"kind": RESET_KIND},
        lambda given: given.get("kind", "rst").upper(),
    ),
    "stall": Action("hold back {}", {}),
    "cut": Action("lose {}", {}),
    "heal": Action("heal {}", {}),
    "partition": Action("divide {}:", {"sets": SETS, "one_way": ONE_WAY}, _sides),
    "swizzle": Action(
        "cut the links among {} in a random order, then heal them in another,",
        {"over_s": FACTOR, "seed": SEED},
        _swizzle,
    ),
    "disk_full": Action("fill the disk of {}", {}),
    "disk_slow": Action(
        "slow down the disk of {} to",
        {"bytes_per_s": FACTOR},
        lambda given: f"{_number(given['bytes_per_s'])} bytes/s",
    ),
    "memory_pressure": Action(
        "occupy memory of {}:",
        {"nbytes": NBYTES},
        lambda given: f"{_number(given['nbytes'])} bytes",
    ),
    "slow_cores": Action(
        "slow down the cores of {}:",
        {"factor": FACTOR},
        lambda given: f"everything takes {_number(given['factor'])} times as long",
    ),
    "clock_skew": Action(
        "set the clock of {}",
        {"skew_ms": SKEW},
        _skew,
    ),
    "lose": Action("lose, in {},", {"kind": KIND, "probability": PROBABILITY}, _share),
    "double": Action("deliver twice, in {},", {"kind": KIND, "probability": PROBABILITY}, _share),
    "delay": Action(
        "delay, in {},",
        {"kind": KIND, "probability": PROBABILITY, "delay_ms": MILLISECONDS},
        _delayed,
    ),
}
"""By name, in the order in which the schema lists them."""
