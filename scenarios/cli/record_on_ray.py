"""``raytwin record --backend ray``: runs a script on Ray itself, and writes what it did as a graph.

    python -m raytwin.scenarios.cli.record_on_ray SETTINGS SCRIPT [ARG...]

The process is the script's driver: Ray's `remote`, `get`, `put` and `wait` are called through
wrappers that note what they are given (`Recorder`). What runs in Ray's workers is not touched: its
times, parents and resources come from the events that Ray keeps of each task. The cluster is one of
this process's own (`RayCluster`), whatever the script gives to ``ray.init()``, and ends with it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from raytwin.runtime.on_ray import NotOnRay, front_door
from raytwin.runtime.on_ray.ray_cluster import RayCluster
from raytwin.runtime.on_ray.ray_session import environment
from raytwin.scenarios.cli.commands.line import say
from raytwin.scenarios.cli.execute import run_as_main
from raytwin.scenarios.core.scenario import UsageError
from raytwin.scenarios.workloads.recordings.imported_graph import TraceError
from raytwin.scenarios.workloads.recordings.ray_graph import (
    Program,
    Put,
    Submission,
    TaskEvent,
    graph,
)

EVENTS_MS = 100
"""How often Ray's processes report their tasks."""
EVENTS_MAX = 1_000_000
"""Of so many tasks the GCS keeps the events."""
EVENTS_TIMEOUT_S = 10.0
INTERRUPTED = 130
"""The exit code of a script that Ctrl-C has ended."""
SIZES_S = 0.05
"""How long one look for ready objects takes."""
LOOK_MAX = 1_000
"""The objects of one look."""
OF_THE_CLUSTER = (
    "backend", "nodes", "cpus_per_node", "num_cpus", "num_gpus", "resources", "object_store_memory",
    "seed", "ignore_reinit_error",
)  # fmt: skip
"""What a script may give to raytwin's ``init()``; Ray's takes more, of no meaning here."""
PASSED_ON = ("namespace", "runtime_env", "log_to_driver", "logging_level", "configure_logging")
"""What a script's ``ray.init()`` decides; the rest is of a cluster that it does not start."""


class Settings(Struct):
    """What the command line says."""

    output: str
    nodes: int | None = None
    cpus_per_node: int | None = None


def start(settings: Settings, script: Path, args: Sequence[str]) -> None:
    """Become the process that records a script; does not return."""
    sys.stdout.flush()
    given = msgspec.json.encode(settings).decode()
    command = [sys.executable, "-m", __name__, given, str(script), *args]
    variables = environment() | {"RAY_USAGE_STATS_ENABLED": "0"}
    variables.pop("RAY_ADDRESS", None)
    os.execve(sys.executable, command, variables)


class Sizes:
    """Finds out how large objects are, once they are there.

    It holds a reference to each until then: a script may drop one as soon as it has passed it on.
    """

    def __init__(self, found: dict[str, int]) -> None:
        self._found = found
        self._pending: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raytwin-sizes", daemon=True)
        self._thread.start()

    def add(self, refs: Sequence[Any]) -> None:
        with self._lock:
            self._pending.update((ref.hex(), ref) for ref in refs)

    def end(self) -> None:
        """Look once more, and stop."""
        self._ended.set()
        self._thread.join()
        for _ in range(0, len(self._pending), LOOK_MAX):
            self._look()
        self._pending.clear()

    def _run(self) -> None:
        while not self._ended.wait(SIZES_S):
            self._look()

    def _look(self) -> None:
        import ray
        from ray.experimental import get_object_locations

        with self._lock:
            refs = list(islice(self._pending.values(), LOOK_MAX))
        if not refs:
            return
        ready, _ = _original(ray.wait)(
            refs, num_returns=len(refs), timeout=SIZES_S, fetch_local=False
        )
        for ref, row in get_object_locations(ready).items() if ready else ():
            if row.get("object_size") is not None:
                self._found[ref.hex()] = int(row["object_size"])
        there = {ref.hex() for ref in ready}
        with self._lock:
            for ref in refs:  # those that are not there go to the end
                del self._pending[ref.hex()]
                if ref.hex() not in there:
                    self._pending[ref.hex()] = ref


def _original(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


class Recorder:
    """The driver's side of a recording: its calls of Ray's API, and its CPU time between them."""

    def __init__(self, settings: Settings, script: Path) -> None:
        self._settings = settings
        self._script = script
        self._cluster: RayCluster | None = None
        self._nodes: list[dict[str, float]] = []
        self._program: Program | None = None
        self._sizes: Sizes | None = None
        self._events: list[TaskEvent] = []
        self._thread = threading.get_ident()
        self._inside = 0
        """Depth of calls of the API on the script's thread."""
        self._cpu_s = 0.0
        """Of the current part, so far."""
        self._since_s = 0.0
        self._ended = False
        self._context: Any = None
        """What Ray's `init` has returned."""
        self.refusal = ""
        """Why the script cannot be recorded."""

    # -- the wrappers ------------------------------------------------------------------

    def install(self) -> None:
        """Put the wrappers in the place of Ray's functions."""
        import ray
        from ray.actor import ActorClass, ActorHandle
        from ray.remote_function import RemoteFunction

        api: Any = ray
        for name, wrapper in (
            ("init", self._init), ("shutdown", self._shutdown), ("get", self._get),
            ("put", self._put), ("wait", self._wait),
        ):  # fmt: skip
            function = getattr(api, name)
            setattr(api, name, functools.wraps(function)(functools.partial(wrapper, function)))
            getattr(api, name).__wrapped__ = function
        door: Any = front_door
        door.init, door.shutdown = self._init_as_raytwin, api.shutdown
        for owner, name in (
            (RemoteFunction, "_remote"), (ActorClass, "_remote"),
            (ActorHandle, "_actor_method_call"),
        ):  # fmt: skip
            self._wrap_submission(owner, name)

    def _wrap_submission(self, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def submit(target: Any, *args: Any, **kwargs: Any) -> Any:
            self._connect({})
            with self._call():
                made = method(target, *args, **kwargs)
                self._submitted(made, name, args, kwargs)
            return made

        setattr(owner, name, submit)

    def _init(self, init: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._program is not None:
            if not (kwargs.get("ignore_reinit_error") and not self._ended):
                self._refuse(
                    f"a recording is of one cluster, and {self._script} starts another: record a"
                    " script that calls init() once"
                )
            return self._context
        self._connect(kwargs)
        return self._context

    def _init_as_raytwin(self, address: str | None = None, **options: Any) -> Any:
        for name, value in options.items():
            if value and name not in (*PASSED_ON, *OF_THE_CLUSTER):
                self._refuse(f"{name} is not possible where a script is recorded on Ray")
        import ray

        return ray.init(**options)

    def _refuse(self, why: str) -> NoReturn:
        """End the script: it cannot be recorded."""
        self.refusal = why
        raise SystemExit(2)

    def _shutdown(self, shutdown: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.end()
        shutdown(*args, **kwargs)

    def _get(self, get: Callable[..., Any], refs: Any, *args: Any, **kwargs: Any) -> Any:
        self._connect({})
        from ray.exceptions import GetTimeoutError

        with self._call() as mine:
            several = refs if isinstance(refs, (list, tuple)) else [refs]
            try:
                return get(refs, *args, **kwargs)
            except GetTimeoutError:
                several = []  # it has gone on without them
                raise
            finally:  # it has waited for a task that has failed, too
                if mine:
                    self._end_part([ref.hex() for ref in several if _is_ref(ref)])

    def _wait(self, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._connect({})
        with self._call() as mine:
            ready, left = wait(*args, **kwargs)
            if mine:
                self._end_part([ref.hex() for ref in ready if _is_ref(ref)])
        return ready, left

    def _put(self, put: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        program = self._connect({})
        with self._call():
            ref = put(*args, **kwargs)
            program.puts.append(Put(ref.hex(), len(program.own)))
            assert self._sizes is not None
            self._sizes.add([ref])
        return ref

    @contextmanager
    def _call(self) -> Iterator[bool]:
        """Keep a call's time out of the driver's own.

        Yields whether it is the script's own call: one that is made on another thread, or inside of
        another call, is no part of what the script does.
        """
        if threading.get_ident() != self._thread:
            yield False
            return
        self._inside += 1
        if self._inside == 1:
            self._cpu_s += time.thread_time() - self._since_s
        try:
            yield self._inside == 1
        finally:
            self._inside -= 1
            if not self._inside:
                self._since_s = time.thread_time()

    def _end_part(self, waited: list[str]) -> None:
        assert self._program is not None
        self._program.own.append((self._cpu_s, 0.0))
        self._program.waits.append(waited)
        self._cpu_s = 0.0

    def _submitted(self, made: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note a submission by what it has returned: references, a generator, or a handle."""
        from ray.actor import ActorHandle

        program = self._program
        assert program is not None and self._sizes is not None
        refs: list[Any] = []
        if isinstance(made, ActorHandle):
            task = f"{'f' * 16}{made._actor_id.hex()}"
        else:
            refs = [each for each in (made if isinstance(made, list) else [made]) if _is_ref(each)]
            if not refs and not hasattr(made, "_generator_ref"):
                return  # without values it has no ID here, and nobody waits for it
            task = (refs[0] if refs else made._generator_ref).task_id().hex()
        first = 1 if name == "_actor_method_call" else 0  # the method's name is before them
        positional = kwargs.get("args", args[first] if len(args) > first else None) or ()
        named = kwargs.get("kwargs", args[first + 1] if len(args) > first + 1 else None) or {}
        given = [*positional, *named.values()]
        inputs = [each.hex() for each in given if _is_ref(each)]
        nbytes = sum(_serialized_bytes(each) for each in given if not _is_ref(each))
        program.submissions.append(
            Submission(task, len(program.own), inputs, nbytes, [ref.hex() for ref in refs])
        )
        self._sizes.add(refs)

    # -- the cluster --------------------------------------------------------------------

    def _connect(self, options: dict[str, Any]) -> Program:
        """Start the cluster and become its driver, at the first call of the API."""
        if self._program is not None:
            return self._program
        if options.get("local_mode"):
            self._refuse("with local_mode Ray has no workers: there is nothing to record")
        import ray

        cpus = self._settings.cpus_per_node
        if cpus is None:
            asked = (options.get("num_cpus"), options.get("cpus_per_node"), os.cpu_count())
            cpus = next(each for each in asked if each is not None)
        each = {"CPU": float(cpus)}
        each |= {"GPU": float(options["num_gpus"])} if options.get("num_gpus") else {}
        each |= options.get("resources") or {}
        count = self._settings.nodes or options.get("nodes") or 1
        self._nodes = [dict(each)] * count if isinstance(count, int) else list(map(dict, count))
        self._cluster = RayCluster(
            self._nodes,
            options.get("object_store_memory"),
            system_config={
                "task_events_report_interval_ms": EVENTS_MS,
                "task_events_max_num_task_in_gcs": EVENTS_MAX,
            },
        )
        kept = {name: value for name, value in options.items() if name in PASSED_ON}
        self._context = _original(ray.init)(
            address=self._cluster.address, **{"logging_level": "ERROR", **kept}
        )
        self._program = Program(time.time())
        self._sizes = Sizes(self._program.sizes)
        self._since_s = time.thread_time()
        return self._program

    def end(self) -> None:
        """Note the program's end, and fetch what Ray knows of its tasks; does nothing later."""
        program = self._program
        if program is None or self._ended:
            return
        self._ended = True
        assert self._sizes is not None
        if not self._inside:
            self._cpu_s += time.thread_time() - self._since_s
        program.own.append((self._cpu_s, 0.0))
        program.ended_s = time.time()
        self._sizes.end()
        waited = {oid[:48] for ids in program.waits for oid in ids} | {
            oid[:48] for oid in program.sizes
        }
        expected = {each.task for each in program.submissions if each.task in waited}
        deadline_s = time.monotonic() + EVENTS_TIMEOUT_S
        while True:
            self._events = _task_events()
            if expected <= {event.task for event in self._events}:
                break
            if time.monotonic() > deadline_s:
                break  # `graph` says how many are missing
            time.sleep(EVENTS_MS / 1e3)

    def close(self) -> None:
        """End the cluster."""
        import ray

        if self._cluster is not None:
            _original(ray.shutdown)()
            self._cluster.shutdown()

    def write(self) -> None:
        """Write the recording, and say what it lacks. Raises UsageError if there is none."""
        if self._program is None:
            raise UsageError(f"{self._script} has not used Ray: there is nothing to record")
        try:
            found = graph(self._program, self._events, self._nodes, str(self._script))
        except TraceError as error:
            raise UsageError(str(error)) from error
        Path(self._settings.output).write_bytes(found.recording.to_json())
        say(
            f"recorded {len(found.recording.bodies):,} tasks and calls in"
            f" {found.recording.makespan_s:.4g} s: {self._settings.output}"
        )
        for lack in found.lacks:
            say(lack)


def _is_ref(value: Any) -> bool:
    import ray

    return isinstance(value, ray.ObjectRef)


def _serialized_bytes(value: Any) -> int:
    from ray._private.worker import global_worker

    return int(global_worker.get_serialization_context().serialize(value).total_bytes)


def _task_events() -> list[TaskEvent]:
    """Return the events of all tasks that have run to their end; of retries, the last."""
    import ray
    from ray._private.state import state
    from ray.core.generated import common_pb2

    generated: Any = common_pb2  # its names are made when it is imported
    kind_of, status = generated.TaskType.Value, generated.TaskStatus.Value
    kinds = {
        kind_of("NORMAL_TASK"): "task",
        kind_of("ACTOR_CREATION_TASK"): "actor",
        kind_of("ACTOR_TASK"): "call",
    }
    pending, running = status("PENDING_ARGS_AVAIL"), status("RUNNING")
    ends = status("FINISHED"), status("FAILED")
    numbers = {
        row["NodeID"]: int(name.partition(":")[2])
        for row in ray.nodes()
        for name in row["Resources"]
        if name.startswith("node:") and name.partition(":")[2].isdecimal()
    }
    found: dict[str, tuple[int, TaskEvent]] = {}
    for row in state._get_all_task_events():
        info, times = row.task_info, row.state_updates.state_ts_ns
        kind: Any = kinds.get(info.type)
        executed = [e for e in row.profile_events.events if e.event_name == "task:execute"]
        end_ns = max((times[each] for each in ends if each in times), default=None)
        if kind is None or end_ns is None or (running not in times and not executed):
            continue
        start_ns = executed[0].start_time if executed else times[running]
        end_ns = executed[0].end_time if executed else end_ns
        task = row.task_id.hex()
        event = TaskEvent(
            task=task,
            parent=info.parent_task_id.hex(),
            name=info.func_or_class_name,
            kind=kind,
            actor=info.actor_id.hex(),
            demand={
                name: amount
                for name, amount in info.required_resources.items()
                if not name.startswith("node:") or name.partition(":")[2].isdecimal()
            },
            node=numbers.get(row.state_updates.node_id.hex(), 0),
            submitted_s=times.get(pending, start_ns) / 1e9,
            start_s=start_ns / 1e9,
            end_s=max(start_ns, end_ns) / 1e9,
        )
        if task not in found or found[task][0] < row.attempt_number:
            found[task] = row.attempt_number, event
    return [event for _, event in found.values()]


def main() -> None:
    """Record one script, and exit as it does."""
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    script, args = Path(sys.argv[2]), sys.argv[3:]
    recorder = Recorder(settings, script)
    try:
        code = _run(recorder, script, args)
        if recorder.refusal:
            raise UsageError(recorder.refusal)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        recorder.write()
    except (UsageError, NotOnRay) as error:
        say(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        say("interrupted: nothing is recorded")
        sys.exit(INTERRUPTED)
    sys.exit(code)


def _run(recorder: Recorder, script: Path, args: Sequence[str]) -> int:
    """Run the script to its end, and end its cluster; return its exit code."""
    try:
        recorder.install()
        try:
            code = run_as_main(script, args)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if code != INTERRUPTED:
            recorder.end()
        return code
    finally:
        recorder.close()


if __name__ == "__main__":
    main()
