"""The options of an actor, which ``@remote(...)`` on a class and ``.options`` take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from raytwin.runtime.api.options.checks import INTEGER_MAX, integer, namespace, text
from raytwin.runtime.api.options.task_options import EVER, TaskOptions, options_given

_OF_TASKS = (
    "num_cpus", "num_gpus", "memory", "resources", "scheduling_strategy", "runtime_env",
    "accelerator_type",
)  # fmt: skip
"""Options with the same meaning as for a task."""
NAMES = (
    *_OF_TASKS, "name", "namespace", "get_if_exists", "lifetime", "max_restarts",
    "max_task_retries", "max_concurrency", "max_pending_calls", "checkpoint_interval",
)  # fmt: skip
_LEAST = {
    "max_restarts": -1, "max_task_retries": -1, "max_pending_calls": -1, "max_concurrency": 0,
    "checkpoint_interval": 0,
}  # fmt: skip
"""The least value of each numeric option."""


@dataclass(frozen=True)
class ActorOptions:
    """Checked options of an actor.

    An actor has its resources until it ends. By default it takes none, but needs a node with a CPU:
    so a node without CPUs is kept free of actors whose author has not thought of it. One that asks
    for GPUs or resources of the program's own takes a CPU as well, as in Ray.
    """

    task: TaskOptions = TaskOptions(num_cpus=0, demand="", stream=0)  # noqa: RUF009
    """The actor's resources, scheduling strategy and environment variables."""
    placement: TaskOptions | None = TaskOptions(stream=0)  # noqa: RUF009
    """What its node must have in total, if that is more than the actor takes: a CPU, for an actor
    without ``num_cpus`` and resources but memory."""
    cpus_given: bool = False
    """Whether ``num_cpus`` was given, also as 0."""
    name: str = ""
    namespace: str = ""
    get_if_exists: bool = False
    lifetime: str = "non_detached"
    max_restarts: int = 0
    """The most restarts, each with reconstruction of the state; -1: any number."""
    max_task_retries: int = 0
    """How often a caller may send a call again after restarts; -1: any number."""
    max_concurrency: int = 0
    """The most concurrent calls; 0: one, or 1,000 for a class with async methods."""
    max_pending_calls: int = -1
    """The most pending calls of one caller, whose next call raises; -1 or 0: any number."""
    checkpoint_interval: int = 0
    """The number of calls between two checkpoints by ``__ray_save__``; 0: no checkpoints."""

    def changed(self, given: dict[str, Any]) -> ActorOptions:
        """Return these options with the given ones changed.

        Raises ValueError for an unknown name or an impossible value, TypeError
        for a value of the wrong type.
        """
        changes = options_given("actor ", NAMES, given)
        cpus_given = self.cpus_given or "num_cpus" in changes
        task = self.task.changed({n: changes.pop(n) for n in _OF_TASKS if n in changes})
        for name in changes:
            if name in _LEAST:
                note = EVER if _LEAST[name] < 0 else ""
                changes[name] = integer(name, changes[name], _LEAST[name], INTEGER_MAX, note)
            elif name == "namespace":
                changes[name] = namespace(changes[name])
            elif name != "get_if_exists":
                changes[name] = text(name, changes[name])
        if "name" in changes and not changes["name"]:
            raise ValueError("an actor's name is not empty")
        takes_more = task.num_gpus or task.resources or task.accelerator_type
        placement = None
        if not cpus_given:
            one = task.changed({"num_cpus": 1})
            if takes_more:
                task = one
            else:
                task, placement = task.changed({"num_cpus": 0}), one
        options = replace(self, task=task, cpus_given=cpus_given, placement=placement, **changes)
        options._check()
        return options

    def _check(self) -> None:
        if self.lifetime not in ("detached", "non_detached"):
            raise ValueError(f"lifetime is 'detached' or 'non_detached', not {self.lifetime!r}")
        if self.get_if_exists and not self.name:
            raise ValueError("get_if_exists needs a name")
        if self.checkpoint_interval and not self.max_restarts:
            raise ValueError("checkpoint_interval is of use only with max_restarts")
