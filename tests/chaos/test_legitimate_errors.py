"""Which errors of a random program are legitimate, given its history and the faults."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.chaos.fuzz.oracle.deaths import retries_of
from raytwin.chaos.fuzz.oracle.history import End, History
from raytwin.chaos.fuzz.oracle.invariants import Late
from raytwin.chaos.fuzz.oracle.legitimate_errors import Objection, Oracle, Verdict
from raytwin.chaos.fuzz.programs.outcomes import Stream
from raytwin.chaos.fuzz.programs.program import ActorSpec
from raytwin.runtime.api.exceptions import ObjectLostError, RaySystemError
from raytwin.runtime.api.failures import exception_of
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    ActorUnavailable,
    Cancellation,
    DeathCause,
    Failure,
    GroupRemoved,
    Loss,
    LossCause,
    Refusal,
    Unschedulable,
    Unsendable,
    WorkerCrash,
)

PUT = bytes.fromhex("12" * 18)
LOST_PUT = Loss(LossCause.NODE_DIED, 1, refusal=Refusal.PUT, object=PUT)
LOST_ONCE = Loss(LossCause.NODE_DIED, 1, "", Refusal.NO_RETRIES, "k2r1", object=b"34")
MISSING = Loss(LossCause.COPY_MISSING, 1, object=bytes(18))
GONE_ON = Loss(LossCause.NODE_DIED, 1, "gone", Refusal.ACTOR_WENT_ON, object=PUT)


class Given:
    """Deaths that all hit everything, and of them so many of nodes; each cost a retry."""

    def __init__(self, total: int, nodes: int = 0) -> None:
        self.total = total
        self.nodes = {(1, incarnation): 0.0 for incarnation in range(1, nodes + 1)}

    def hits(self, name: str, before_s: float = inf) -> int:
        return self.total

    def left(self, name: str) -> int:
        most = retries_of(name)
        return most if most < 0 else max(0, most - self.total)


class NoneLeft(Given):
    """Deaths after which nothing had a retry left."""

    def left(self, name: str) -> int:
        return 0


class OneLeft(Given):
    """Deaths after which everything had a retry left."""

    def left(self, name: str) -> int:
        return 1


def judged(error: BaseException, kills: int, deaths: int, **more: Any) -> str:
    """Return why an error may not come; `more` are fields of the oracle and of its history."""
    history = History(**{name: more.pop(name) for name in [*more] if hasattr(History(), name)})
    return reason(Oracle(history, Given(kills, deaths), **more).judge(error))


def reason(judgement: Verdict | Objection) -> str:
    return judgement.reason if isinstance(judgement, Objection) else ""


def objection(failure: Failure, kills: int, deaths: int, **more: Any) -> str:
    """Return why the error that a failure is may not come."""
    return judged(exception_of(failure), kills, deaths, **more)


@pytest.mark.parametrize(
    ("failure", "kills", "deaths", "ok"),
    [
        (WorkerCrash("k3r0", "worker:1.1", "killed"), 1, 0, True),
        (WorkerCrash("k3r0", "worker:1.1", "killed"), 0, 0, False),
        (WorkerCrash("k3r1"), 1, 1, False),
        (WorkerCrash("k3r1"), 0, 0, False),
        (WorkerCrash("k3r2"), 1, 1, False),
        (WorkerCrash("k3r1"), 2, 1, True),
        (WorkerCrash("k3r-1"), 9, 9, False),
        (WorkerCrash("something"), 9, 9, False),
        (LOST_PUT, 1, 1, True),
        (LOST_PUT, 1, 0, False),
        (Loss(LossCause.RELEASED, object=PUT), 9, 9, False),
        (replace(LOST_PUT, object=bytes.fromhex("34" * 18)), 9, 9, False),
        (Loss(LossCause.MAKER_DIED, refusal=Refusal.NO_RETRIES, task="k1r3"), 2, 2, False),
        (Loss(LossCause.MAKER_DIED, refusal=Refusal.NO_RETRIES, task="k1r1"), 2, 1, True),
        (Loss(LossCause.MAKER_DIED, refusal=Refusal.NO_RETRIES, task="k1r1"), 1, 1, True),
        (ActorDeath(DeathCause.NODE_DIED, "a3r1"), 2, 1, True),
        (ActorDeath(DeathCause.NODE_DIED, "a3r1"), 1, 1, False),
        (ActorDeath(DeathCause.NODE_DIED, "a3r1"), 1, 0, False),
        (ActorDeath(DeathCause.NODE_DIED, "a3r2"), 1, 1, False),
        (ActorDeath(DeathCause.WORKER_DIED, "a3r1"), 1, 1, False),
        (ActorDeath(DeathCause.WORKER_DIED, "a3r1"), 2, 1, True),
        (ActorDeath(DeathCause.WORKER_DIED, "a3r1"), 1, 0, False),
        (ActorDeath(DeathCause.WORKER_DIED, "a3r2"), 1, 1, False),
        (ActorDeath(DeathCause.WORKER_DIED, "a3r0"), 0, 1, False),
        (ActorDeath(DeathCause.WORKER_DIED, "a3r-1"), 9, 9, False),
        (ActorDeath(DeathCause.NO_OWNER, "a3r1"), 9, 9, False),
        (ActorDeath(DeathCause.REPLAY_INPUT_FAILED, "a3r1", root=LOST_PUT), 1, 1, True),
        (ActorDeath(DeathCause.REPLAY_INPUT_FAILED, "a3r1"), 9, 9, False),
        (ActorUnavailable("t7r2", b""), 3, 0, True),
        (ActorUnavailable("t7r2", b""), 2, 2, False),
        (Unsendable("RunTasks", "it is too long"), 9, 9, False),
    ],
)
def test_which_errors_are_legitimate(failure: Failure, kills: int, deaths: int, ok: bool) -> None:
    called = {"t7r2": ActorSpec(1)}
    assert (objection(failure, kills, deaths, puts={PUT.hex()}, actor_of=called) == "") == ok


@pytest.mark.parametrize(("deaths", "ok"), [(NoneLeft, True), (OneLeft, False)])
def test_a_task_fails_only_when_no_retry_is_left(deaths: type[Given], ok: bool) -> None:
    """Whatever number of deaths may have hit it: each costs one retry."""
    lost = Loss(LossCause.MAKER_DIED, refusal=Refusal.NO_RETRIES, task="k3r3")
    for failure in (WorkerCrash("k3r3"), lost):
        judgement = Oracle(History(), deaths(5, 5)).judge(exception_of(failure))
        assert (judgement is Verdict.CHARGED) == ok


@pytest.mark.parametrize("error", [RaySystemError("nothing has happened"), Late("wait")])
def test_errors_without_a_failure_are_not_legitimate(error: Exception) -> None:
    assert judged(error, 9, 9)


@pytest.mark.parametrize(
    ("array", "cause", "ok"),
    [
        ("12" * 12, LossCause.OWNER_DIED, True),
        ("12" * 12, LossCause.RELEASED, False),
        ("34" * 12, LossCause.OWNER_DIED, False),
    ],
)
def test_only_objects_of_a_dead_owner_may_be_lost_with_it(
    array: str, cause: LossCause, ok: bool
) -> None:
    for refusal in (None, Refusal.PUT):
        lost = Loss(cause, refusal=refusal, object=PUT)
        needs = Loss(LossCause.NODE_DIED, 1, "", Refusal.INPUT_LOST, "k3r-1", root=lost)
        for failure in (lost, needs):
            owned, dead = {array: {"worker:1.2"}}, {"worker:1.2"}
            assert (objection(failure, 9, 0, owners=owned, dead_workers=dead) == "") == ok


@pytest.mark.parametrize("cause", [LossCause.OWNER_DIED, LossCause.RELEASED])
@pytest.mark.parametrize(
    ("owner", "ok"),
    [("worker:1.2", True), ("worker:1.1000002", False), ("worker:2.2", False)],
)
def test_objects_are_lost_with_the_node_of_their_owner(
    owner: str, ok: bool, cause: LossCause
) -> None:
    """Node 1 has died once: its workers of that time with it, and what only they knew."""
    owned = {"12" * 12: {owner}}
    lost = Loss(cause, object=PUT)
    assert (objection(lost, 9, 1, owners=owned) == "") == ok
    assert objection(lost, 9, 0, owners=owned)


def test_contained_objects_are_not_lost_while_their_value_is_needed() -> None:
    assert objection(Loss(LossCause.RELEASED, object=bytes(18)), 9, 9)


@pytest.mark.parametrize(
    ("refusal", "task", "root", "kills", "deaths", "ok"),
    [
        (Refusal.NO_RETRIES, "k3r1", None, 2, 1, True),
        (Refusal.NO_RETRIES, "k3r1", None, 1, 1, True),
        (Refusal.NO_RETRIES, "k3r2", None, 1, 1, False),
        (Refusal.NO_RETRIES, "k3r1", None, 2, 0, False),
        (Refusal.NO_RETRIES, "k3r-1", None, 9, 9, False),
        (Refusal.NOT_YIELDED, "k3r-1", None, 9, 9, False),
        (Refusal.NOT_YIELDED, "k3r-1", Unsendable("RunTasks", ""), 9, 9, False),
        (Refusal.NOT_YIELDED, "k3r-1", LOST_PUT, 1, 1, True),
        (Refusal.INPUT_LOST, "k3r-1", LOST_PUT, 1, 1, True),
        (Refusal.INPUT_LOST, "k3r-1", LOST_PUT, 1, 0, False),
        (Refusal.INPUT_LOST, "k3r-1", LOST_ONCE, 2, 1, True),
        (Refusal.INPUT_LOST, "k3r-1", LOST_ONCE, 1, 1, True),
    ],
)
def test_which_lost_results_are_legitimate(
    refusal: Refusal, task: str, root: Failure | None, kills: int, deaths: int, ok: bool
) -> None:
    loss = replace(MISSING, refusal=refusal, task=task, root=root)
    assert (objection(loss, kills, deaths, puts={PUT.hex()}) == "") == ok


@pytest.mark.parametrize(
    ("spec", "ended", "ok"),
    [
        (ActorSpec(1, -1, -1, interval=0), set(), False),
        (ActorSpec(1, -1, -1, interval=2), set(), True),
        (ActorSpec(1, -1, -1, interval=0), {"a1r-1"}, True),
        (ActorSpec(1, 2, 2, interval=0), set(), False),
        (ActorSpec(1, 0, 0, interval=0), {"a1r0"}, True),
        (None, {"a1r0"}, False),
    ],
)
def test_an_actor_that_is_replayed_loses_nothing(
    spec: ActorSpec | None, ended: set[str], ok: bool
) -> None:
    specs = {PUT.hex(): spec} if spec is not None else {}
    assert (objection(GONE_ON, 9, 1, puts={PUT.hex()}, actor_of=specs, died=ended) == "") == ok


@pytest.mark.parametrize(
    ("root", "interval", "kills", "deaths", "ok"),
    [
        (ActorUnavailable("t7r0", b""), 0, 1, 1, True),
        (ActorUnavailable("t7r0", b""), 0, 0, 1, False),
        (ActorUnavailable("t7r0", b""), 0, 1, 0, False),
        (ActorUnavailable("t7r1", b""), 0, 1, 1, False),
        (ActorUnavailable("t7r-1", b""), 0, 9, 9, False),
        (ActorUnavailable("t7r-1", b""), 2, 9, 9, True),
        (LOST_PUT, 0, 9, 9, False),
        (LOST_PUT, 2, 9, 9, True),
    ],
)
def test_an_item_is_lost_if_its_call_may_have_ended_without_effect(
    root: Failure, interval: int, kills: int, deaths: int, ok: bool
) -> None:
    loss = replace(GONE_ON, root=root)
    spec = ActorSpec(1, 3, 0, interval=interval)
    specs = dict.fromkeys((PUT.hex(), "t7r0", "t7r1", "t7r-1"), spec)
    assert (objection(loss, kills, deaths, puts={PUT.hex()}, actor_of=specs) == "") == ok
    assert objection(loss, kills, deaths, puts={PUT.hex()})


@pytest.mark.parametrize(
    ("failure", "more", "verdict"),
    [
        (Cancellation("k8r3"), {"cancelled": {"k8r3"}}, Verdict.OWN),
        (WorkerCrash("k3r0"), {}, Verdict.CHARGED),
        (ActorDeath(DeathCause.NODE_DIED, "a3r0"), {}, Verdict.CHARGED),
        (LOST_PUT, {"puts": {PUT.hex()}}, Verdict.CHARGED),
        (replace(LOST_PUT, node=2), {"puts": {PUT.hex()}}, Verdict.EXCUSED),
        (
            Loss(LossCause.EARLIER_RUN, object=PUT),
            {"actor_of": {PUT.hex(): ActorSpec(1)}},
            Verdict.EXCUSED,
        ),
        (Loss(LossCause.FREED, task="k3r0", object=PUT), {}, Verdict.EXCUSED),
    ],
)
def test_an_error_without_a_certain_cause_is_excused(
    failure: Failure, more: dict[str, Any], verdict: Verdict
) -> None:
    assert Oracle(History(**more), Given(1, 1)).judge(exception_of(failure)) is verdict


@pytest.mark.parametrize(("restarts", "ok"), [(-1, False), (3, True)])
def test_inputs_of_an_exact_actor_never_fail(restarts: int, ok: bool) -> None:
    death = ActorDeath(DeathCause.REPLAY_DIVERGED, "a1r3", detail="t7r-1")
    assert (objection(death, 9, 1, actor_of={"t7r-1": ActorSpec(1, restarts, -1)}) == "") == ok


@pytest.mark.parametrize(("name", "ok"), [("t7r-1", True), ("k8r3", False)])
def test_only_cancelled_tasks_may_raise_a_cancellation(name: str, ok: bool) -> None:
    assert (objection(Cancellation(name), 0, 0, cancelled={"t7r-1"}) == "") == ok


@pytest.mark.parametrize("interrupted", [False, True])
def test_interrupted_tasks_may_raise_a_cancellation(interrupted: bool) -> None:
    failure = Cancellation("k8r3", True, interrupted)
    assert objection(failure, 0, 0) and not objection(failure, 0, 0, cancelled={"k8r3"})


@pytest.mark.parametrize(
    ("pinned", "deaths", "ok"),
    [({}, 1, False), ({"k8r3": 1}, 0, False), ({"k8r3": 1}, 1, True), ({"k8r3": 2}, 1, False),
     ({"k8r3": -1}, 0, True)],
)  # fmt: skip
def test_a_task_for_one_node_fails_if_that_is_not_there(
    pinned: dict[str, int], deaths: int, ok: bool
) -> None:
    failure = Unschedulable("k8r3", "no living node")
    assert (objection(failure, 0, deaths, pinned=pinned) == "") == ok


@pytest.mark.parametrize(
    ("failure", "limit"),
    [
        (ActorDeath(DeathCause.NODE_DIED, "a3r-1", outgrown=True), "actor_log_bytes_max"),
        (replace(LOST_ONCE, refusal=Refusal.NO_RECORD, task=""), "lineage_bytes_max"),
    ],
)
def test_what_exceeds_a_limit_of_the_case_is_not_made_again(failure: Failure, limit: str) -> None:
    assert objection(failure, 1, 1, limits={limit}) == ""
    assert objection(failure, 1, 1) != ""
    assert objection(failure, 0, 0, limits={limit}) != "", "nothing has died"


# -- what the program itself ends ----------------------------------------------------

GROUP = "ab" * 12
REMOVED = GroupRemoved("k9r0", GROUP)
KILLED = ActorDeath(DeathCause.KILLED, "a1r1")
LEFT = ActorDeath(DeathCause.EXITED, "a1r1")


@pytest.mark.parametrize(
    ("failure", "ends", "kills", "ok"),
    [
        (KILLED, [], 9, False),
        (KILLED, [(End.KILL_FOR_GOOD, "a1r1")], 0, True),
        (KILLED, [(End.KILL_FOR_GOOD, "a2r1")], 0, False),
        (KILLED, [(End.KILL, "a1r1")], 0, False),
        (KILLED, [(End.KILL, "a1r1")], 1, True),
        (KILLED, [(End.KILL, "a1r1")] * 2, 0, True),
        (LEFT, [(End.LEAVE, "a1r1")], 0, False),
        (LEFT, [(End.LEAVE, "a1r1")], 1, True),
        (LEFT, [], 9, False),
        (REMOVED, [(End.REMOVE, GROUP)], 0, True),
        (GroupRemoved("k8r0", GROUP), [(End.REMOVE, GROUP)], 0, False),
        (REMOVED, [], 9, False),
    ],
)
def test_an_end_explains_only_errors_of_its_actor_or_group(
    failure: Failure, ends: list[tuple[End, str]], kills: int, ok: bool
) -> None:
    error = exception_of(failure)
    history = History(placed={"k9r0": GROUP}, ends=[*ends])
    history.seen(error)
    for _ in range(2):
        assert (reason(Oracle(history, Given(kills)).judge(error)) == "") == ok
        history.ends += [(End.KILL_FOR_GOOD, "a1r1"), (End.LEAVE, "a1r1"), (End.REMOVE, GROUP)]


LOST = ObjectLostError("object x is lost")


@pytest.mark.parametrize(
    ("found", "ok"),
    [((1, 2, 3), True), ((1, 9, 3), False), ((1, 2), False), ((1, 2, 3, 3), False), ((), False),
     ((1, LOST, 3), True), ((1, 9, LOST), False), ((LOST, 3), False), ((1, LOST), True),
     ((1, 2, 3, LOST), True), ((1, 2, 3, LOST, LOST), False)],
)  # fmt: skip
def test_an_error_in_a_stream_explains_no_other_item(found: tuple[Any, ...], ok: bool) -> None:
    items = Stream(iter(found)).rest(lambda item: item)[0]
    assert items.is_right(Stream(iter((1, 2, 3))).rest(lambda item: item)[0]) == ok
    assert items.unexpected == [part for part in found if part is LOST]
