"""The options of a remote function, which ``@remote(...)`` and ``.options`` take."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raytwin.runtime.api.options.checks import amount, amounts, integer, text
from raytwin.runtime.api.options.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.control.core.ids import RETURNS_MAX
from raytwin.runtime.control.core.resources import format_demand
from raytwin.runtime.control.messages import DYNAMIC, STREAM

RETRIES_DEFAULT = 3

NAMES = (
    "num_cpus", "num_gpus", "memory", "resources", "num_returns", "max_retries", "name",
    "retry_exceptions", "scheduling_strategy", "runtime_env", "accelerator_type",
)  # fmt: skip

UNSUPPORTED = {
    "max_calls": "workers are not ended after a number of calls",
    "object_store_memory": "Ray itself does not act on it",
    "placement_group": "use scheduling_strategy=PlacementGroupSchedulingStrategy(...)",
    "placement_group_bundle_index": "use PlacementGroupSchedulingStrategy(...)",
    "placement_group_capture_child_tasks": "use PlacementGroupSchedulingStrategy(...)",
    "label_selector": "nodes have no labels",
    "fallback_strategy": "nodes have no labels",
    "_labels": "tasks have no labels",
    "enable_task_events": "there are no task events to turn off",
    "_generator_backpressure_num_objects": "a stream is not held back",
    "_actor_generator_backpressure_num_objects": "a stream is not held back",
    "_num_objects_per_yield": "a yield makes one object",
    "concurrency_groups": "a class has one max_concurrency for all of its methods",
    "concurrency_group": "a class has one max_concurrency for all of its methods",
    "allow_out_of_order_execution": "with max_concurrency above 1 calls overtake one another",
    "enable_tensor_transport": "values go through the object store",
    "tensor_transport": "values go through the object store",
}
"""Ray's options of tasks, actors and methods that raytwin does not have, with the reason."""

_DEFAULTS: dict[str, Any] = {
    "enable_task_events": True,
    "max_calls": 0,
    "placement_group": "default",
    "placement_group_bundle_index": -1,
}
"""The defaults of such options in Ray; the defaults of the others are None."""

EVER = " (for ever)"
"""The explanation of -1 in errors."""
ACCELERATOR_AMOUNT = 0.001
"""The amount of ``accelerator_type:X`` that a task takes: it selects nodes, but limits nothing."""

_OPTIONS_OF = {
    "CPU": "num_cpus",
    "GPU": "num_gpus",
    "memory": "memory",
    "object_store_memory": "init(object_store_memory=...)",
}
"""By resource: the option that gives its amount, so that ``resources`` does not name it."""

_STREAMS = {"streaming": STREAM, "dynamic": DYNAMIC}


@dataclass(frozen=True)
class TaskOptions:
    """Checked options, with the demand in its canonical form."""

    num_cpus: float = 1
    num_gpus: float = 0
    memory: float = 0
    """Bytes; they select nodes and limit how many such tasks run there, not what a task uses."""
    resources: tuple[tuple[str, float], ...] = ()
    num_returns: int = 1
    """The references per call; 1 for a generator task, streaming or dynamic."""
    max_retries: int = RETRIES_DEFAULT
    name: str = ""
    demand: str = "CPU:1"
    stream: int = -1
    """`STREAM`, `DYNAMIC` or 0 for neither; -1: `STREAM` for a generator function, else 0."""
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    scheduling_strategy: (
        str | NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy | None
    ) = None
    """None: the task goes where a capturing placement group of its parent is, if there is one."""
    env_vars: tuple[tuple[str, str], ...] = ()
    accelerator_type: str = ""
    plain: bool = True
    """Whether no option needs a `TaskExtra`, except perhaps `stream`."""

    def changed(self, given: dict[str, Any]) -> TaskOptions:
        """Return these options with the given ones changed.

        Raises ValueError for an unknown name or an impossible value, TypeError
        for a value of the wrong type.
        """
        changes = options_given("", NAMES, given)
        if "resources" in changes:
            changes["resources"] = _resources(changes["resources"])
        if "num_returns" in changes:
            changes["num_returns"], changes["stream"] = _returns(changes["num_returns"])
        if "max_retries" in changes:
            changes["max_retries"] = integer("max_retries", changes["max_retries"], -1, note=EVER)
        for name in ("name", "accelerator_type"):
            if name in changes:
                changes[name] = text(name, changes[name])
        for name in ("num_cpus", "num_gpus", "memory"):
            if name in changes:
                changes[name] = amount(name, changes[name])
        gpus = changes.get("num_gpus", 0)
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"num_gpus is a whole number, or below 1, not {gpus!r}")
        if "retry_exceptions" in changes:
            changes["retry_exceptions"] = exception_classes(changes["retry_exceptions"])
        if "scheduling_strategy" in changes:
            changes["scheduling_strategy"] = strategy(changes["scheduling_strategy"])
        if "runtime_env" in changes:
            changes["env_vars"] = env_vars(changes.pop("runtime_env"))
        options = replace(self, **changes)
        demand = {
            "CPU": options.num_cpus,
            "GPU": options.num_gpus,
            "memory": options.memory,
            **dict(options.resources),
        }
        if options.accelerator_type:
            demand[f"accelerator_type:{options.accelerator_type}"] = ACCELERATOR_AMOUNT
        plain = (
            not options.retry_exceptions
            and options.scheduling_strategy in (None, "DEFAULT")
            and not options.env_vars
        )
        return replace(options, demand=format_demand(demand), plain=plain)


def options_given(kind: str, names: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with a value; None means the default.

    Raises ValueError for unknown options, and for Ray's options that raytwin does not have,
    unless they have Ray's default.
    """
    found = {}
    for name, value in given.items():
        if name in names:
            if value is not None:
                found[name] = value
        elif name not in UNSUPPORTED:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise ValueError(f"raytwin has no {kind}option {name!r}: {hint}")
        elif type(value) is not type(_DEFAULTS.get(name)) or value != _DEFAULTS.get(name):
            raise ValueError(
                f"raytwin does not have Ray's {kind}option {name!r}: {UNSUPPORTED[name]}"
                " (docs/api.md)"
            )
    return found


def _resources(resources: Any) -> tuple[tuple[str, float], ...]:
    checked = amounts("resources", resources)
    for reserved, option in _OPTIONS_OF.items():
        if reserved in checked:
            raise ValueError(f"{reserved} is not one of the resources: use {option}")
    return tuple(sorted(checked.items()))


def returns(given: Any) -> int:
    """Return a checked numeric ``num_returns``."""
    return integer("num_returns", given, 0, RETURNS_MAX)


def _returns(given: Any) -> tuple[int, int]:
    """Return (references per call, stream) for a ``num_returns``."""
    if isinstance(given, str):
        if given not in _STREAMS:
            raise ValueError(f"num_returns is a number, 'streaming' or 'dynamic', not {given!r}")
        return 1, _STREAMS[given]
    return returns(given), 0


def exception_classes(given: Any) -> bool | tuple[type[BaseException], ...]:
    """Return a checked ``retry_exceptions``. Raises TypeError for any other type."""
    if isinstance(given, bool):
        return given
    if given is None:
        return False
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"retry_exceptions is a bool or a list of exception classes, not {given!r}")
    for item in given:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise TypeError(f"retry_exceptions lists exception classes, and {item!r} is none")
    return tuple(given)


def strategy(given: Any) -> Any:
    """Return a checked scheduling strategy. Raises ValueError for anything else."""
    if isinstance(given, NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy):
        return given
    if isinstance(given, str) and given in ("DEFAULT", "SPREAD"):
        return str.__str__(given)
    raise ValueError(
        "scheduling_strategy is 'DEFAULT', 'SPREAD', a NodeAffinitySchedulingStrategy or a"
        f" PlacementGroupSchedulingStrategy, not {given!r}"
    )


def env_vars(runtime_env: Any) -> tuple[tuple[str, str], ...]:
    """Return the environment variables of a ``runtime_env``.

    Raises ValueError for other keys: raytwin's processes share the driver's files
    and packages, so nothing else can be set up for one task.
    """
    if not isinstance(runtime_env, Mapping):
        raise TypeError(f"runtime_env is a dict, not {runtime_env!r}")
    other = sorted(name for name in runtime_env if name != "env_vars")
    if other:
        raise ValueError(
            f"raytwin's runtime_env has env_vars only, not {', '.join(map(repr, other))}:"
            " workers run with the driver's files and packages"
        )
    given = runtime_env.get("env_vars") or {}
    if not isinstance(given, Mapping):
        raise TypeError(f"env_vars is a dict of strings, not {given!r}")
    checked = {}
    for key, value in given.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"env_vars is a dict of strings, not {{{key!r}: {value!r}}}")
        name = text("a name in env_vars", key)
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        checked[name] = text(f"env_vars[{name!r}]", value)
        if "\0" in checked[name]:
            raise ValueError(f"env_vars[{name!r}] has a null character in it")
    return tuple(sorted(checked.items()))
