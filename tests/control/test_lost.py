"""Which error says that an object is lost."""

from __future__ import annotations

import pytest

from runtime.api.exceptions import ObjectLostError, OwnerDiedError, system_error
from runtime.control.lost import MADE_BY_ACTOR, OWNER_DIED, PUT, RELEASED, lost_error

OID = bytes(range(18))


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (OWNER_DIED, OwnerDiedError),
        (PUT + OWNER_DIED, OwnerDiedError),
        (MADE_BY_ACTOR + OWNER_DIED, OwnerDiedError),
        (f"{OWNER_DIED}, and the record of its task is gone", OwnerDiedError),
        (RELEASED, ObjectLostError),
        (PUT + RELEASED, ObjectLostError),
        (f"{RELEASED}, and the record of its task is gone", ObjectLostError),
        ("the only copy was on node 1, and f has no retries left", ObjectLostError),
        (f"f was put, and its task needs 12, which is lost: {OWNER_DIED}", ObjectLostError),
    ],
)
def test_the_owners_death_alone_makes_it_an_owner_died_error(why: str, kind: type) -> None:
    error = system_error(lost_error(OID, why).encode(), OID)
    assert type(error) is kind
    assert str(error) == f"object {OID.hex()} is lost: {why}"
    assert isinstance(error, ObjectLostError) and error.object_ref_hex == OID.hex()
