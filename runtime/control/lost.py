"""Why an object is lost, in words, and the error that says so.

A reason that is the owner's death alone makes an OwnerDiedError, any other an
ObjectLostError, which that is a kind of.
"""

from __future__ import annotations

from runtime.control.messages import SYSTEM_ERROR, ObjectValue, RangeResult

OWNER_DIED = "its owner has died"
RELEASED = "its owner has died or released it"
"""Where it cannot be told which."""
LET_GO = "its owner has let go of it"
"""Nothing was lost by a fault: who made it may be asked once more."""
UNTOLD = "the only copy was on a node that died"
"""No living node has it, and the one that had did not tell the table that it had made it."""
PUT = "it was put, and "
NEEDS_LOST = " needs an input that is lost: "
MADE_BY_ACTOR = "an actor made it, and "
GONE_ON = ", and the actor that made it has gone on since"


def lost_error(oid: bytes, why: str) -> str:
    """Return the error of a lost object, as a SYSTEM_ERROR's payload has it."""
    reason = why.removeprefix(PUT).removeprefix(MADE_BY_ACTOR)
    by_owner = reason == OWNER_DIED or reason.startswith(f"{OWNER_DIED}, ")
    name = "OwnerDiedError" if by_owner else "ObjectLostError"
    return f"{name}: object {oid.hex()} is lost: {why}"


def root_of(error: str) -> str:
    """Return the error of the input at whose loss a chain of them begins."""
    return error.rpartition(NEEDS_LOST)[2]


def is_lost(result: RangeResult | ObjectValue) -> bool:
    """Whether it is the error of a lost object: the object's, or that of a task that needs it."""
    lost = (b"OwnerDiedError: ", b"ObjectLostError: ")
    return result.status == SYSTEM_ERROR and bytes(result.payload).startswith(lost)
