"""The error classes and texts of lost objects."""

from __future__ import annotations

import pickle

import pytest

from raytwin.runtime.api.exceptions import ObjectLostError, OwnerDiedError
from raytwin.runtime.api.failures import exception_of
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal, pack, unpack

OID = bytes(range(18))
LOST = f"object {OID.hex()} is lost: "
PUT = Loss(LossCause.OWNER_DIED, refusal=Refusal.PUT, object=bytes(18))


@pytest.mark.parametrize(
    ("loss", "kind", "text"),
    [
        (Loss(LossCause.OWNER_DIED), OwnerDiedError, "its owner has died"),
        (
            Loss(LossCause.OWNER_DIED, refusal=Refusal.PUT),
            OwnerDiedError,
            "its owner has died, and it was put, so no task makes it again",
        ),
        (
            Loss(LossCause.OWNER_DIED, refusal=Refusal.ACTOR_WENT_ON),
            OwnerDiedError,
            "its owner has died, and the actor that made it has gone on since",
        ),
        (
            Loss(LossCause.RELEASED, refusal=Refusal.NO_RECORD),
            ObjectLostError,
            "its owner has died or released it, and the record of its task is gone",
        ),
        (
            Loss(LossCause.NODE_DIED, 1, "no heartbeat", Refusal.NO_RETRIES, "f"),
            ObjectLostError,
            "the only copy was on node 1, which died: no heartbeat, and f has no retries left",
        ),
        (
            Loss(LossCause.NODE_DIED, 1, "gone", Refusal.INPUT_LOST, "f", root=PUT),
            ObjectLostError,
            "the only copy was on node 1, which died: gone, and f needs an input that is lost:"
            f" OwnerDiedError: object {bytes(18).hex()} is lost: its owner has died, and it was"
            " put, so no task makes it again",
        ),
    ],
)
def test_the_owners_death_alone_makes_it_an_owner_died_error(
    loss: Loss, kind: type, text: str
) -> None:
    error = exception_of(unpack(pack(loss)), OID)
    assert type(error) is kind
    assert str(error) == LOST + text
    assert isinstance(error, ObjectLostError) and error.object_ref_hex == OID.hex()
    assert error.failure == loss
    again = pickle.loads(pickle.dumps(error))
    assert (again.failure, str(again)) == (loss, str(error))


@pytest.mark.parametrize("cause", LossCause)
@pytest.mark.parametrize("refusal", [None, *Refusal])
def test_every_cause_has_a_text(cause: LossCause, refusal: Refusal | None) -> None:
    error = exception_of(Loss(cause, 7, "detail", refusal, "f"), OID)
    assert str(error).startswith(LOST) and "detail" in str(error)


def test_a_value_that_was_never_made_is_named_by_its_task() -> None:
    loss = Loss(LossCause.MAKER_DIED, refusal=Refusal.NO_RETRIES, task="f")
    assert str(exception_of(loss)).startswith("what f made is lost: ")
