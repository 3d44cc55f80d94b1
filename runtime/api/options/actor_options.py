"""The options of an actor: what ``@remote(...)`` on a class and ``.options`` take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from raytwin.runtime.api.options.checks import INTEGER_MAX, integer, namespace, text
from raytwin.runtime.api.options.task_options import EVER, ONLY_RAYS, TaskOptions, asks_nothing

_OF_TASKS = (
    "num_cpus", "num_gpus", "resources", "scheduling_strategy", "runtime_env", "accelerator_type",
)  # fmt: skip
"""What means the same for a task."""
NAMES = (
    *_OF_TASKS, "name", "namespace", "get_if_exists", "lifetime", "max_restarts",
    "max_task_retries", "max_concurrency", "max_pending_calls", "checkpoint_interval",
)  # fmt: skip
NOT_HERE = {
    "concurrency_groups": "a class has one max_concurrency for all of its methods",
    "allow_out_of_order_execution": "with max_concurrency above 1 calls overtake one another",
    "enable_tensor_transport": "values go through the object store",
    "_actor_generator_backpressure_num_objects": "a stream is not held back",
    **{name: ONLY_RAYS[name] for name in (
        "memory", "object_store_memory", "placement_group", "placement_group_bundle_index",
        "placement_group_capture_child_tasks", "label_selector", "fallback_strategy", "_labels",
        "enable_task_events",
    )},
}  # fmt: skip
"""Options of Ray that raytwin does not have, and what to know instead."""
CONCURRENCY_MAX = 10_000
_LEAST = {
    "max_restarts": -1, "max_task_retries": -1, "max_pending_calls": -1, "max_concurrency": 0,
    "checkpoint_interval": 0,
}  # fmt: skip
"""Of each option that is a number."""


@dataclass(frozen=True)
class ActorOptions:
    """Checked options.

    An actor holds its resources for life; by default it needs none.
    """

    task: TaskOptions = TaskOptions(num_cpus=0, demand="", stream=0)  # noqa: RUF009
    """Its resources, where it runs, and its environment."""
    name: str = ""
    namespace: str = ""
    get_if_exists: bool = False
    lifetime: str = "non_detached"
    max_restarts: int = 0
    """How often it may start again; -1: for ever. Its state is rebuilt."""
    max_task_retries: int = 0
    """How often one of its calls may be sent again when it started again."""
    max_concurrency: int = 0
    """Calls that may run at a time; 0: one, or 1,000 for a class with async methods."""
    max_pending_calls: int = -1
    """Calls of one caller that may be pending, or the next raises; -1 or 0: any number."""
    checkpoint_interval: int = 0
    """Calls between two checkpoints by ``__ray_save__``; 0: none."""

    def changed(self, given: dict[str, Any]) -> ActorOptions:
        """Return these options with others in their place.

        Raises ValueError for an unknown name or an impossible value, TypeError
        for a value of the wrong type.
        """
        given = {n: v for n, v in given.items() if n not in NOT_HERE or not asks_nothing(n, v)}
        for name in given:
            if name in NOT_HERE:
                raise ValueError(
                    f"raytwin does not have Ray's actor option {name!r}: {NOT_HERE[name]}"
                    " (docs/api.md, Options of an actor)"
                )
            if name not in NAMES:
                import difflib

                near = difflib.get_close_matches(name, NAMES, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
                raise ValueError(f"raytwin has no actor option {name!r}: {hint}")
        own = {name: value for name, value in given.items() if name in NAMES}
        changes = {n: v for n, v in own.items() if n not in _OF_TASKS and v is not None}
        rest = {name: value for name, value in given.items() if name not in changes}
        task = self.task.changed({n: v for n, v in rest.items() if v is not None})
        for name in changes:
            if name in _LEAST:
                most = CONCURRENCY_MAX if name == "max_concurrency" else INTEGER_MAX
                note = EVER if _LEAST[name] < 0 else ""
                changes[name] = integer(name, changes[name], _LEAST[name], most, note)
            elif name == "namespace":
                changes[name] = namespace(changes[name])
            elif name != "get_if_exists":
                changes[name] = text(name, changes[name])
        if "name" in changes and not changes["name"]:
            raise ValueError("an actor's name is not empty")
        options = replace(self, task=task, **changes)
        options._check()
        return options

    def _check(self) -> None:
        if self.lifetime not in ("detached", "non_detached"):
            raise ValueError(f"lifetime is 'detached' or 'non_detached', not {self.lifetime!r}")
        if self.get_if_exists and not self.name:
            raise ValueError("get_if_exists needs a name")
        if self.checkpoint_interval and not self.max_restarts:
            raise ValueError("checkpoint_interval is of use only with max_restarts")
