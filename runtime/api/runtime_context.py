"""`get_runtime_context`: the job, node, task or actor of the calling code."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.actors import ActorClass, ActorHandle
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.ids import ActorID, JobID, NodeID, TaskID
from raytwin.runtime.api.modules import explains_missing_attributes, missing_names
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.control.core.group_resources import plain_amounts
from raytwin.runtime.control.messages import TaskSpec


@explains_missing_attributes("RuntimeContext")
class RuntimeContext:
    """The IDs and options of the calling code; those of tasks are None in a driver."""

    def get_job_id(self) -> str:
        """Return the ID of the driver's job: its number in Ray's format."""
        return current().job_number.to_bytes(4, "little").hex()

    def get_node_id(self) -> str:
        """Return the ``NodeID`` of the calling code's node, as in `nodes()`."""
        return str(current().node)

    def get_worker_id(self) -> str:
        """Return the address of the calling process."""
        return current().address

    def get_task_id(self) -> str | None:
        """Return the ID of the running task."""
        task = current().task_id()
        return None if task is None else task.hex()

    def get_task_name(self) -> str | None:
        """Return the running task's ``name``, by default its function's."""
        spec = _running()
        return None if spec is None else spec.name

    def get_task_function_name(self) -> str | None:
        """Return the qualified name of the running task's function, or of the actor's method."""
        spec = _running()
        return None if spec is None else current().function_name(spec)

    def get_task_attempt(self) -> int:
        """Return how often the running task was started before: 0 in its first attempt.

        It counts retries after an error of its own, after its process or node died, and
        reconstructions of its value. Raises RuntimeError outside of tasks.
        """
        spec = _running()
        if spec is None or (spec.extra is not None and spec.extra.call):
            raise RuntimeError("get_task_attempt() is for tasks")
        extra = spec.extra
        return 0 if extra is None else extra.attempt + extra.tries + extra.crashes

    def get_actor_id(self) -> str | None:
        """Return the ID of the calling actor, None for a task."""
        actor = current().actor
        return None if actor is None else actor[0].hex()

    def is_canceled(self) -> bool:
        """Return whether `cancel` was called for the running task or actor's call.

        In a cancelled task KeyboardInterrupt is raised as well; a method that is no coroutine
        goes on, and can ask here. A replayed call counts as cancelled from its beginning, or
        from the item on at which it was cancelled. Raises RuntimeError in a driver, and in an
        actor of coroutines, whose calls are cancelled where they wait.
        """
        return current().is_cancelled()

    @property
    def job_id(self) -> JobID:
        """The ID of the driver's job."""
        return JobID.from_hex(self.get_job_id())

    @property
    def node_id(self) -> NodeID:
        """The ID of the calling code's node."""
        return NodeID.from_hex(self.get_node_id())

    @property
    def task_id(self) -> TaskID | None:
        """The ID of the running task."""
        task = current().task_id()
        return None if task is None else TaskID(task)

    @property
    def actor_id(self) -> ActorID | None:
        """The ID of the calling actor, None for a task."""
        actor = current().actor
        return None if actor is None else ActorID(actor[0])

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the calling actor; calls through it are not retried.

        Raises RuntimeError outside of an actor.
        """
        actor = current().actor
        if actor is None:
            raise RuntimeError("current_actor is there in an actor only")
        ref, cls = current().this_actor()
        restarts = actor[1].max_restarts if actor[1] is not None else 0
        description = ActorClass(cls, ActorOptions(max_restarts=restarts)).description()
        return ActorHandle(actor[0], ref, description, cls)

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The running task's or actor's ``runtime_env``."""
        import json

        found: dict[str, Any] = json.loads(self.get_runtime_env_string())
        return found

    def get_actor_name(self) -> str | None:
        """Return the actor's name, an empty string if it has none; None for a task."""
        actor = current().actor
        return None if actor is None or actor[1] is None else actor[1].name

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the calling actor was restarted; False for a task."""
        actor = current().actor
        return actor is not None and actor[1] is not None and actor[1].incarnation > 0

    @property
    def namespace(self) -> str:
        """The driver's namespace; by default one that no other job has."""
        return current().job_namespace()

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the resources of the running task or actor. Raises RuntimeError in a driver."""
        options = current().options_in_force()
        if options is None:
            raise RuntimeError("resources are assigned to tasks, and this is a driver")
        return plain_amounts(options[0])

    def get_placement_group_id(self) -> str | None:
        """Return the ID of the running task's or actor's placement group, None without one."""
        return group_of_caller().partition("/")[0] or None

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether children of the running task or actor run in its placement group."""
        return group_of_caller().endswith("/capture")

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the IDs of accelerators by kind; see `get_gpu_ids`."""
        return {"GPU": [str(number) for number in get_gpu_ids()]}

    def get_runtime_env_string(self) -> str:
        """Return the running task's or actor's ``runtime_env`` as JSON."""
        import json

        options = current().options_in_force()
        env = dict(options[1].env) if options is not None and options[1] is not None else {}
        return json.dumps({"env_vars": env} if env else {})

    @property
    def gcs_address(self) -> str:
        """The address at which other drivers may join, known to drivers; else "local"."""
        return current().cluster_address or "local"

    def get(self) -> dict[str, Any]:
        """Return the namespace and the IDs that exist as a dictionary."""
        found = {
            "job_id": self.get_job_id(),
            "node_id": self.get_node_id(),
            "namespace": self.namespace,
        }
        task, actor = self.get_task_id(), self.get_actor_id()
        if task is not None:
            found["task_id"] = task
        if actor is not None:
            found["actor_id"] = actor
        return found


_CONTEXT = RuntimeContext()
__getattr__ = missing_names("runtime_context")


def get_runtime_context() -> RuntimeContext:
    """Return the context of the calling code."""
    return _CONTEXT


def get_gpu_ids() -> list[int]:
    """Return the numbers of the running task's or actor's GPUs: none if it asked for none."""
    return current().gpus()


def group_of_caller() -> str:
    """Return the placement group of the running task or actor, "" outside of any.

    The string ends with "/capture" if children run in the group too.
    """
    options = current().options_in_force()
    return "" if options is None or options[1] is None else options[1].group


def _running() -> TaskSpec | None:
    task = current().running_task()
    return None if task is None else task[0]
