"""A random program as data: operations on variables, tasks with programs of their own, actors.

`interpreter` says what the operations mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from raytwin.runtime.control.core.config import Config

LARGE_BYTES = Config().inline_bytes_max + 100
"""Just too large for a message."""
DEPTH_MAX = 2
RETRIES = (0, 1, 3, 3, 3, -1)
SLOT = "slot"
"""The resource of the bundles of placement groups, besides CPUs."""


@dataclass(frozen=True)
class Call:
    """A task or call: sleeps, runs its body, and returns or raises what key and inputs decide."""

    key: int
    seconds: float = 0.0
    nbytes: int = 0
    """Of the value; 0: an integer."""
    fails: bool = False
    retries: int = 3
    cpus: float = 1.0
    body: Body | None = None
    gives: bool = False
    """The task's value is a list of references: what it was lent, a put and a task of its own."""
    parts: int = 0
    """How many values it has; 0: one."""
    awaits: int = 0
    """The key of a concurrent call of the same actor: this call waits until it has ended."""
    sums_up: bool = False
    """The value of this call of a shared actor tells all calls that took effect so far."""
    leaves: bool = False
    """The call ends its actor, by `exit_actor`."""


@dataclass(frozen=True)
class Teller:
    """An actor; see `interpreter.Told`."""

    key: int
    restarts: int = -1
    retries: int = -1
    """Of each call."""
    interval: int = 0
    """Calls between checkpoints; 0: none are taken."""
    shared: bool = False
    """The actor has several callers, concurrent or cancelled calls, so their order is undefined: no
    value depends on other calls but that of a call with `Call.sums_up`."""
    mortal: bool = False
    """The actor ends at the first call that does not take effect, so each value depends on all
    calls before it."""
    most: int = 1
    """How many calls run concurrently."""
    coroutines: bool = False
    """Concurrent calls are coroutines, and threads if not."""
    cpus: float = 0.0
    """CPUs that the actor holds as long as it lives."""

    @property
    def exact(self) -> bool:
        """Whether no fault may fail a call."""
        return self.restarts < 0 and self.retries < 0

    @property
    def folds(self) -> bool:
        """Whether each value tells all calls before."""
        return not self.shared and (self.exact or self.mortal)


@dataclass(frozen=True)
class Place:
    """Where in a placement group a task, an array or an actor runs."""

    group: int
    """The group's variable."""
    bundle: int = -1
    """-1: any."""
    slots: float = 0.0
    """Besides the CPUs."""


@dataclass(frozen=True)
class Op:
    """One operation; ``out`` is the variable that it sets, ``ins`` are those that it reads.

    ======== ==================================================================
    call     submit `call` with the values of ``ins``
    lend     the same with references to ``ins`` inside a list; the task gets them
    map      submit `call` once for each of ``count`` integers
    returns  submit `call`, which has several values: ``out`` and the next variables
    stream   submit `call`, which yields its values one by one
    take     the next item of a stream, or the last one again once the stream has ended
    put      store a value
    pack     store a list of references to ``ins``
    get      ask for the values of ``ins``
    wait     wait until ``count`` of ``ins`` are there
    drop     drop ``ins``
    actor    start `teller`
    tell     call the actor that the first of ``ins`` is with the values of the others
    yields   the same, for a call that yields its values one by one
    tally    ask a shared actor by `call` whether of the other ``ins``, its calls, those took
             effect that were not cancelled or had begun, and no others
    cancel   cancel the task or call that made the first of ``ins``; `call` is its call
    kill     kill the actor that the first of ``ins`` is; it restarts if ``count`` is 1
    gone     each of ``ins``, made after the end of an actor or group, is the error for that
    group    reserve a placement group of `bundles`
    reserved wait for the group, and check where its bundles are
    remove   remove the group
    ======== ==================================================================

    The first ``hands`` of the inputs of ``call`` and ``tell`` are actors: the body of `call` has
    them as variables `HANDED`, `HANDED` - 1 and so on.
    """

    do: str
    ins: tuple[int, ...] = ()
    out: int = -1
    call: Call | None = None
    count: int = 0
    nbytes: int = 0
    teller: Teller | None = None
    hands: int = 0
    place: Place | None = None
    bundles: tuple[tuple[tuple[str, float], ...], ...] = ()
    strategy: str = "PACK"


HANDED = -2
FORCED = 1
"""The ``count`` of a ``cancel`` with force."""


@dataclass(frozen=True)
class Body:
    """Operations in order; variables that are left at the end are asked for."""

    ops: tuple[Op, ...]

    @property
    def tasks(self) -> int:
        """How many tasks and calls it has, nested ones included."""
        calls = [(op.call, op.count if op.do == "map" else 1) for op in self.ops if op.call]
        return sum(n + (call.body.tasks if call.body else 0) for call, n in calls)


def task_name(call: Call) -> str:
    """Return the task's name, by which errors call it."""
    return f"k{call.key}r{call.retries}"


def call_name(call: Call) -> str:
    """Return the name of a call of an actor, likewise."""
    return f"t{call.key}r{call.retries}"


def actor_name(teller: Teller) -> str:
    """Return the actor's class, by which errors call it."""
    return f"a{teller.key}r{teller.restarts}"
