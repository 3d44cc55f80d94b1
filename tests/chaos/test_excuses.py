"""Which errors of a random program are legitimate, after what a plan and the program have done."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.bodies import Teller
from chaos.ended import Ended
from chaos.fuzz import excuse
from chaos.invariants import Violation
from chaos.outcomes import Stream
from runtime.api.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    RaySystemError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    WorkerCrashedError,
)

PUT = "12" * 18
LOST_PUT = f"ObjectLostError: object {PUT} is lost: it was put, and node 1 died"
LOST_ONCE = "ObjectLostError: object 34 is lost: node 1 died, and k2r1 has no retries left"


@pytest.mark.parametrize(
    ("error", "kills", "deaths", "ok"),
    [
        (WorkerCrashedError("worker:1.1 died while it ran k3r0: killed"), 1, 0, True),
        (WorkerCrashedError("worker:1.1 died while it ran k3r0: killed"), 0, 0, False),
        (WorkerCrashedError("the node that ran k3r1 died: gone"), 1, 1, False),
        (WorkerCrashedError("the node that ran k3r1 died: gone"), 2, 1, True),
        (WorkerCrashedError("the node that ran k3r-1 died: gone"), 9, 9, False),
        (WorkerCrashedError("something died"), 9, 9, False),
        (ObjectLostError(f"object {PUT} is lost: it was put, and node 1 died"), 1, 1, True),
        (ObjectLostError(f"object {PUT} is lost: it was put, and node 1 died"), 1, 0, False),
        (ObjectLostError(f"object {PUT} is lost: its owner has died or released it"), 9, 9, False),
        (ObjectLostError(f"object {'34' * 18} is lost: it was put, and node 1 died"), 9, 9, False),
        (
            ObjectLostError("what k1r3 made is lost: k1r3 has no retries left"),
            2,
            2,
            False,
        ),
        (ObjectLostError("what k1r1 made is lost: gone, and k1r1 has no retries left"), 2, 1, True),
        (ActorDiedError("a3r1 died: its node died: gone"), 2, 1, True),
        (ActorDiedError("a3r1 died: its worker ended: killed"), 1, 1, False),
        (ActorDiedError("a3r-1 died: its worker ended: killed"), 9, 9, False),
        (ActorDiedError(f"it cannot be rebuilt: {LOST_PUT}"), 1, 1, True),
        (ActorDiedError("it cannot be rebuilt: an input is an error"), 9, 9, False),
        (ActorUnavailableError("t7r2: the actor started anew"), 3, 0, True),
        (ActorUnavailableError("t7r2: the actor started anew"), 2, 2, False),
        (RaySystemError("nothing has happened"), 9, 9, False),
        (Violation("wait"), 9, 9, False),
    ],
)
def test_which_errors_are_legitimate(error: Exception, kills: int, deaths: int, ok: bool) -> None:
    assert (excuse(error, kills, deaths, puts={PUT}) == "") == ok


def test_what_a_killed_worker_owned_may_not_be_lost() -> None:
    oid = "ab" * 18
    assert excuse(ObjectLostError(f"object {oid} is lost: its owner has died"), 1, 0)


def test_what_a_value_refers_to_is_not_lost_while_others_need_the_value() -> None:
    error = ObjectLostError(f"object {'ab' * 18} is lost: its owner has died or released it")
    assert excuse(error, 9, 9)


@pytest.mark.parametrize(
    ("why", "kills", "deaths", "ok"),
    [
        ("does not have it any more, and k3r1 has no retries left", 2, 1, True),
        ("does not have it any more, and k3r1 has no retries left", 1, 1, False),
        ("does not have it any more, and k3r1 has no retries left", 2, 0, False),
        ("does not have it any more, and k3r-1 has no retries left", 9, 9, False),
        ("died, and k3r-1 has not yielded it again", 9, 9, False),
        ("died, and k3r-1 has not yielded it again: OSError: no disk", 9, 9, False),
        (f"died, and k3r-1 has not yielded it again: {LOST_PUT}", 1, 1, True),
        (f"died, and k3r-1 needs an input that is lost: {LOST_PUT}", 1, 1, True),
        (f"died, and k3r-1 needs an input that is lost: {LOST_PUT}", 1, 0, False),
        (f"died, and k3r-1 needs an input that is lost: {LOST_ONCE}", 2, 1, True),
        (f"died, and k3r-1 needs an input that is lost: {LOST_ONCE}", 1, 1, False),
    ],
)
def test_which_lost_results_are_legitimate(why: str, kills: int, deaths: int, ok: bool) -> None:
    error = ObjectLostError(f"object 12 is lost: the only copy was on node 1, which {why}")
    assert (excuse(error, kills, deaths, puts={PUT}) == "") == ok


@pytest.mark.parametrize(
    ("teller", "ended", "ok"),
    [
        (Teller(1, -1, -1, interval=0), set(), False),
        (Teller(1, -1, -1, interval=2), set(), True),
        (Teller(1, -1, -1, interval=0), {"a1r-1"}, True),
        (Teller(1, 2, 2, interval=0), set(), False),
        (Teller(1, 0, 0, interval=0), {"a1r0"}, True),
        (None, {"a1r0"}, False),
    ],
)
def test_an_actor_that_is_replayed_loses_nothing(
    teller: Teller | None, ended: set[str], ok: bool
) -> None:
    lost = f"object {PUT} is lost: the only copy was on node 1, which died: gone"
    error = ObjectLostError(f"{lost}, and the actor that made it has gone on since")
    told = {PUT: teller} if teller is not None else {}
    assert (excuse(error, 9, 1, puts={PUT}, told=told, ended=ended) == "") == ok


@pytest.mark.parametrize(
    ("cause", "interval", "kills", "deaths", "ok"),
    [
        ("ActorUnavailableError: t7r0: the actor started anew", 0, 1, 1, True),
        ("ActorUnavailableError: t7r0: the actor started anew", 0, 0, 1, False),
        ("ActorUnavailableError: t7r0: the actor started anew", 0, 1, 0, False),
        ("ActorUnavailableError: t7r1: the actor started anew", 0, 1, 1, False),
        ("ActorUnavailableError: t7r-1: the actor started anew", 0, 9, 9, False),
        ("ActorUnavailableError: t7r-1: the actor started anew", 2, 9, 9, True),
        ("ActorUnavailableError: nobody knows", 0, 9, 9, False),
        ("ObjectLostError: an item is lost", 0, 9, 9, False),
        ("ObjectLostError: an item is lost", 2, 9, 9, True),
    ],
)
def test_an_item_is_lost_if_its_call_may_have_ended_without_effect(
    cause: str, interval: int, kills: int, deaths: int, ok: bool
) -> None:
    lost = f"object {PUT} is lost: the only copy was on node 1, which died: gone"
    error = ObjectLostError(f"{lost}, and the actor that made it has gone on since: {cause}")
    told = {PUT: Teller(1, 3, 0, interval=interval)}
    assert (excuse(error, kills, deaths, puts={PUT}, told=told) == "") == ok
    assert excuse(error, kills, deaths, puts={PUT})


@pytest.mark.parametrize(("restarts", "ok"), [(-1, False), (3, True)])
def test_of_an_actor_without_end_nothing_fails_that_its_calls_need(restarts: int, ok: bool) -> None:
    why = "t7r-1 raised when it was repeated, which it had not done before"
    error = ActorDiedError(f"it cannot be rebuilt: {why}")
    assert (excuse(error, 9, 1, told={"t7r-1": Teller(1, restarts, -1)}) == "") == ok


@pytest.mark.parametrize(("name", "ok"), [("t7r-1", True), ("k8r3", False)])
def test_only_what_was_cancelled_may_say_so(name: str, ok: bool) -> None:
    error = TaskCancelledError(f"{name} was cancelled")
    assert (excuse(error, 9, 9, cancelled={"t7r-1"}) == "") == ok


# -- what the program itself ends ----------------------------------------------------

GROUP = "ab" * 12
REMOVED = f"k9r0 was in placement group {GROUP}, which is gone"


def what_ended(**more: Any) -> Ended:
    ended = Ended()
    ended.actors["01"] = "a1r1"
    for actor, restart in more.get("kills", ()):
        ended.kill(actor, restart)
    for actor in more.get("left", ()):
        ended.leave(actor)
    for group in more.get("groups", ()):
        ended.remove(group)
    ended.within.update(more.get("within", ()))
    return ended


def killed() -> ActorDiedError:
    error = ActorDiedError("it was killed by kill()")
    error.actor_id = "01"
    return error


LEFT = "a1r1 has ended: exit_actor() was called"


@pytest.mark.parametrize(
    ("error", "more", "kills", "ok"),
    [
        (killed(), {}, 9, False),
        (killed(), {"kills": [("a1r1", False)]}, 0, True),
        (killed(), {"kills": [("a2r1", False)]}, 0, False),
        (killed(), {"kills": [("a1r1", True)]}, 0, False),
        (killed(), {"kills": [("a1r1", True)]}, 1, True),
        (killed(), {"kills": [("a1r1", True)] * 2}, 0, True),
        (ActorDiedError(LEFT), {"left": ["a1r1"]}, 0, False),
        (ActorDiedError(LEFT), {"left": ["a1r1"]}, 1, True),
        (ActorDiedError(LEFT), {}, 9, False),
        (TaskPlacementGroupRemoved(REMOVED), {"groups": [GROUP], "within": ["cd" * 12]}, 0, True),
        (TaskPlacementGroupRemoved(REMOVED), {"groups": [GROUP]}, 0, False),
        (TaskPlacementGroupRemoved(REMOVED), {"within": ["cd" * 12]}, 9, False),
    ],
)
def test_what_the_program_has_ended_explains_just_that(
    error: Exception, more: dict[str, Any], kills: int, ok: bool
) -> None:
    ended = what_ended(**more)
    ended.seen(error, "cd" * 18)
    assert (excuse(error, kills, 0) == "") == ok
    ended.kill("a1r1", False)
    ended.leave("a1r1")
    ended.remove(GROUP)
    assert (excuse(error, kills, 0) == "") == ok, "it was seen before that"


LOST = ObjectLostError("object x is lost")


@pytest.mark.parametrize(
    ("found", "ok"),
    [((1, 2, 3), True), ((1, 9, 3), False), ((1, 2), False), ((1, 2, 3, 3), False), ((), False),
     ((1, LOST, 3), True), ((1, 9, LOST), False), ((LOST, 3), False), ((1, LOST), True),
     ((1, 2, 3, LOST), True), ((1, 2, 3, LOST, LOST), False)],
)  # fmt: skip
def test_an_error_in_a_stream_excuses_no_other_item(found: tuple[Any, ...], ok: bool) -> None:
    items = Stream(iter(found)).rest(lambda item: item)[0]
    assert items.is_right(Stream(iter((1, 2, 3))).rest(lambda item: item)[0]) == ok
    assert items.strange == [part for part in found if part is LOST]
