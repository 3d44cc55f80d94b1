"""A random program as data: operations on variables, tasks with programs of their own, actors.

What they do is in `interpreter`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raytwin.runtime.control.core.config import Config

LARGE_BYTES = Config().inline_bytes_max + 100
"""Just too large to ride in a message."""
DEPTH_MAX = 2
RETRIES = (0, 1, 3, 3, 3, -1)


@dataclass(frozen=True)
class Call:
    """A task: sleeps, runs its body, and returns (or raises) what its key and inputs say."""

    key: int
    seconds: float = 0.0
    nbytes: int = 0
    """Of the value; 0: an integer."""
    fails: bool = False
    retries: int = 3
    cpus: float = 1.0
    body: Body | None = None
    gives: bool = False
    """Its value is a list of references: what it was lent, a put and a task of its own.
    An actor's call keeps a put and a task of its own for later ones."""
    parts: int = 0
    """How many values it has; 0: one."""


class SumUp(Call):
    """A call of a `Gatherer`: its value tells all that has taken effect so far."""


@dataclass(frozen=True)
class Meet(Call):
    """A call of a `Beside` that waits until another one has taken effect."""

    other: int = 0
    """That one's key."""


class Leave(Call):
    """A call that ends its actor, by `exit_actor`."""


@dataclass(frozen=True)
class Teller:
    """An actor; see `Told`."""

    key: int
    restarts: int = -1
    retries: int = -1
    """Of each call."""
    interval: int = 0
    """Calls between checkpoints; 0: none are taken."""

    @property
    def exact(self) -> bool:
        """Whether no fault may fail a call, so that each value tells all that came before."""
        return self.restarts < 0 and self.retries < 0

    @property
    def folds(self) -> bool:
        """Whether each value tells all that came before."""
        return self.exact


class Gatherer(Teller):
    """One with several callers: only the values of `SumUp` tell of other calls."""

    @property
    def sums_up(self) -> bool:
        """Whether they do: nothing that took effect is ever forgotten."""
        return self.exact


class Ledger(Gatherer):
    """One whose calls are cancelled: it restarts without end, or never."""

    @property
    def sums_up(self) -> bool:
        return True


@dataclass(frozen=True)
class Beside(Gatherer):
    """One whose calls run beside one another."""

    most: int = 2
    """So many of them at a time."""
    coroutines: bool = False
    """They are coroutines, and threads if not."""


@dataclass(frozen=True)
class Holder(Teller):
    """An actor that needs CPUs as long as it lives."""

    cpus: float = 1.0


class Mortal(Teller):
    """One that ends at the first call that does not take effect, so its values tell all."""

    @property
    def folds(self) -> bool:
        return True


@dataclass(frozen=True)
class Op:
    """One operation; ``out`` is the variable that it sets, ``ins`` are those that it reads.

    A task of several values (`Call.parts`) returns them (``returns``, which sets ``out``
    and the next variables), or yields them one by one (``stream``), sleeping in between;
    one that fails raises after half of them. ``take`` gets the next item of a stream, and
    the last one again once it is over: the error, if there was one.

    ===== ==================================================================
    call  run `call` with the values of ``ins``
    lend  the same, with references to ``ins`` inside a list: it gets them
    map   run `call` once for each of ``count`` integers
    put   store a value
    pack  store a list of references to ``ins``
    get   ask for the values of ``ins``
    wait  wait until ``count`` of ``ins`` are there
    drop  let go of ``ins``
    actor start `teller`
    tell  call the actor that the first of ``ins`` is with the values of the others
    yields the same, of a call of several values that yields them one by one
    hand  run `call` with the values of ``ins``
    cancel the task or call that made the first of ``ins``; it is `call`
    kill  kill the actor that the first of ``ins`` is, with a restart if ``count`` is 1
    gone  each of ``ins``, of what is not there any more, is just that error
    group reserve a placement group, a `Group`
    reserved  wait for it, and look where its bundles are
    remove it
    tally ask the `Ledger` that the first of ``ins`` is, by `call`, whether of the others,
          which it was told, just those took effect that were not cancelled, or had begun
    ===== ==================================================================

    The actors that a `Handing` of the last two has are variables of the call's body, too:
    `HANDED`, `HANDED` - 1 and so on.
    """

    do: str
    ins: tuple[int, ...] = ()
    out: int = -1
    call: Call | None = None
    count: int = 0
    nbytes: int = 0
    teller: Teller | None = None


HANDED = -2
FORCED = 1
"""The ``count`` of a ``cancel`` with force."""


@dataclass(frozen=True)
class Handing(Op):
    """One that hands actors on."""

    hands: tuple[int, ...] = ()


@dataclass(frozen=True)
class Group(Op):
    """A placement group."""

    bundles: tuple[tuple[tuple[str, float], ...], ...] = ()
    strategy: str = "PACK"


@dataclass(frozen=True)
class Placed(Op):
    """A ``call``, ``map`` or ``actor`` in a placement group."""

    group: int = 0
    """The group's variable."""
    bundle: int = -1
    """-1: any."""
    demand: tuple[tuple[str, float], ...] = ()
    """Besides the call's CPUs."""
    captures: bool = False
    """Its children run there too."""


@dataclass(frozen=True)
class Body:
    """Operations in order; variables that are left at the end are asked for."""

    ops: tuple[Op, ...]
    tasks: int = field(default=0, compare=False)
    """How many tasks it has, nested ones included."""


def task_name(call: Call) -> str:
    """Return the task's name, by which errors call it."""
    return f"k{call.key}r{call.retries}"


def call_name(call: Call) -> str:
    """Return the name of a call of an actor, likewise."""
    return f"t{call.key}r{call.retries}"


def actor_name(teller: Teller) -> str:
    """Return the actor's class, by which errors call it."""
    return f"a{teller.key}r{teller.restarts}"
