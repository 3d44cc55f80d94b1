"""A random program as data: operations on variables, tasks with bodies of their own, actors.

`interpreter` defines the meaning of the operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raytwin.runtime.control.core.config import Config

LARGE_BYTES = Config().inline_bytes_max + 100
"""The size of a value that is just too large for a message."""
DEPTH_MAX = 2
RETRIES = (0, 1, 3, 3, 3, -1)
QUERIES = (
    "nodes", "events", "event_counts", "jobs", "tables", "names", "placements", "groups",
    "groups_there", "timeline", "transfers", "actors", "available", "stores", "loads", "disks",
)  # fmt: skip
"""The kinds of queries that every cluster answers; see `control.observability.queries`."""
NODES_MAX = 100
"""Clusters have fewer nodes."""
SLOT = "slot"
"""The resource of the bundles of placement groups, besides CPUs."""


@dataclass(frozen=True)
class Call:
    """A task or call: it sleeps, runs its body, and returns or raises by its key and inputs."""

    key: int
    seconds: float = 0.0
    nbytes: int = 0
    """The size of the value; 0: an integer."""
    fails: bool = False
    retries: int = 3
    cpus: float = 1.0
    body: Body | None = None
    returns_refs: bool = False
    """Whether the value is a list of references: to lent objects, a put and a child task."""
    parts: int = 0
    """The number of values of a task with several; 0: it has one."""
    awaits: int = 0
    """The key of a concurrent call of the same actor, for whose end this call waits."""
    sums_up: bool = False
    """Whether the value depends on all calls of a shared actor that have taken effect."""
    leaves: bool = False
    """Whether the call ends its actor, by `exit_actor`."""
    gpus: float = 0.0
    strategy: str = ""
    """The scheduling strategy: ``SPREAD``, the number of the node that it prefers, or with an
    exclamation mark the number of the only node on which it may run."""
    flaky: int = 0
    """How often it raises `Flaky` before it runs, after which it is retried; see `Engine.flake`."""


@dataclass(frozen=True)
class ActorSpec:
    """An actor; see `interpreter.FoldActor`."""

    key: int
    restarts: int = -1
    retries: int = -1
    """The retries of each call."""
    interval: int = 0
    """The number of calls between checkpoints; 0: no checkpoints."""
    shared: bool = False
    """Whether the order of calls is undefined: of several callers, concurrent or cancelled calls.
    Then only the value of a call with `Call.sums_up` depends on other calls."""
    mortal: bool = False
    """Whether the actor ends at the first call that does not take effect, so that each value
    depends on all calls before it."""
    most: int = 1
    """The most concurrent calls."""
    coroutines: bool = False
    """Whether concurrent calls are coroutines, else threads."""
    cpus: float = 0.0
    """The CPUs that the actor has until it ends."""
    name: str = ""
    """The name by which ``find`` finds it."""
    detached: bool = False
    """Whether it lives until the program kills it."""

    @property
    def exact(self) -> bool:
        """Whether no fault may fail a call."""
        return self.restarts < 0 and self.retries < 0

    @property
    def folds(self) -> bool:
        """Whether each value depends on all calls before."""
        return not self.shared and (self.exact or self.mortal)


@dataclass(frozen=True)
class Place:
    """The place of a task, an array or an actor in a placement group."""

    group: int
    """The group's variable."""
    bundle: int = -1
    """The bundle's index; -1: any."""
    slots: float = 0.0
    """The demand for `SLOT`, besides the CPUs."""


@dataclass(frozen=True)
class Op:
    """One operation; ``out`` is the variable that it sets, ``ins`` are those that it reads.

    ======== ==================================================================
    call     submit `call` with the values of ``ins``
    lend     submit `call` with a list of references to ``ins``, which the task gets itself
    map      submit `call` once for each of ``count`` integers
    returns  submit `call`, which has several values: ``out`` and the next variables
    stream   submit `call`, which yields its values one by one
    take     the next item of a stream, or the last one again once the stream has ended
    put      store a value
    pack     store a list of references to ``ins``
    get      get the values of ``ins``
    wait     wait until ``count`` of ``ins`` are ready
    waits    wait for ``count`` more of ``ins`` at a time until all are ready, with a time-out of
             `timeout_s` each if that is not 0
    drop     drop ``ins``
    actor    start `spec`; its constructor has the values of ``ins``
    tell     call an actor, the first of ``ins``, with the values of the others
    tells    call an actor, the first of ``ins``, ``count`` times in a row, with rising keys
    yields   call an actor likewise; the call yields its values one by one
    tally    call a shared actor, the first of ``ins``, with `call`: of the others, its calls,
             exactly those must have taken effect that were not cancelled before they began
    cancel   cancel the task or call that made the first of ``ins``; `call` is its call
    kill     kill an actor, the first of ``ins``; it restarts if ``count`` is 1
    find     find an actor, the first of ``ins``, by its name, in the way number ``count``; see
             `FIND_BY_NAME`
    ready    wait until an actor, the first of ``ins``, has begun
    gone     check that each of ``ins``, submitted after the end of an actor or group, is its error
    group    reserve a placement group of `bundles`
    reserved wait for the group, and check the nodes of its bundles
    remove   remove the group
    set_key  set key number ``count`` of the key-value table to a value that no other operation sets
    read_key read key number ``count``
    query    ask the cluster for the rows of kind number ``count`` of `QUERIES`
    look_up  look up in the history the tasks of all values that were the first of ``ins`` so far
    exit     end the program at once, whatever its tasks do: the end of its job frees all of it
    ======== ==================================================================

    The first ``handles`` of the inputs of ``call`` and ``tell`` are actors: the body of `call` has
    them as variables `FIRST_HANDLE`, `FIRST_HANDLE` - 1 and so on.
    """

    do: str
    ins: tuple[int, ...] = ()
    out: int = -1
    call: Call | None = None
    count: int = 0
    nbytes: int = 0
    spec: ActorSpec | None = None
    handles: int = 0
    place: Place | None = None
    bundles: tuple[tuple[tuple[str, float], ...], ...] = ()
    strategy: str = "PACK"
    timeout_s: float = 0.0
    name: str = ""
    """The name of the group."""
    detached: bool = False
    """Whether the group stays until it is removed."""

    @property
    def times(self) -> int:
        """How often the operation submits its call."""
        return self.count if self.do in ("map", "tells") else 1

    @property
    def calls(self) -> list[Call]:
        """The calls of ``tells``."""
        assert self.call is not None
        return [replace(self.call, key=self.call.key + number) for number in range(self.count)]


FIRST_HANDLE = -2
FORCED = 1
"""The ``count`` of a ``cancel`` with force."""
FIND_BY_NAME, START_UNLESS_THERE, START_IN_VAIN = range(3)
"""The ``count`` of a ``find``: by `get_actor`; as one who starts the actor unless it is there; by
`get_actor` after an attempt to start another one of this name, which fails."""
MORE_THAN_A_NODE = 1_000.0
"""An amount of any resource that no node has."""


@dataclass(frozen=True)
class Body:
    """Operations in order; at the end the body gets the values of all remaining variables."""

    ops: tuple[Op, ...]

    @property
    def calls(self) -> Iterator[Call]:
        """All tasks and calls, nested ones included."""
        for op in self.ops:
            if op.call is not None:
                yield op.call
                if op.call.body is not None:
                    yield from op.call.body.calls

    @property
    def tasks(self) -> int:
        """The number of tasks and calls, nested ones included."""
        calls = [(op.call, op.times) for op in self.ops if op.call]
        return sum(n + (call.body.tasks if call.body else 0) for call, n in calls)


def task_name(call: Call) -> str:
    """Return the task's name in errors: its key and its retries."""
    return f"k{call.key}r{call.retries}"


def call_name(call: Call) -> str:
    """Return the name of an actor's call in errors: its key and its retries."""
    return f"t{call.key}r{call.retries}"


def actor_name(spec: ActorSpec) -> str:
    """Return the name of the actor's class, which errors have: its key and its restarts."""
    return f"a{spec.key}r{spec.restarts}"
