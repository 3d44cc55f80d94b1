"""Relays: what one machine says to another gets there once and in order, whoever begins anew."""

from __future__ import annotations

from raytwin.runtime.control.core.addresses import master_of
from raytwin.runtime.control.gcs.sharding.relay import UNACKNOWLEDGED_MAX, Relay, make_relays
from raytwin.runtime.control.messages import (
    ChainAttach,
    ChainConfigured,
    ChainHello,
    ChainOutput,
    ChainRequest,
    ReplicaInfo,
)
from raytwin.runtime.control.replication.state_machine import RELAY_BORN
from tests.control.alone import Alone

FIRST = "replica:0.1"
SECOND = "replica:0.1000001"
"""The only replicas of chains 0 and 1."""


def two() -> tuple[list[Alone], list[Relay]]:
    """Return the relays of two chains, which have asked for configurations."""
    contexts = [Alone(), Alone()]
    relays = make_relays(list(contexts))
    for relay in relays:
        relay.start()
    return contexts, relays


def configure(relays: list[Relay], epoch: int = 1) -> None:
    for chain, name in enumerate((FIRST, SECOND)):
        message = ChainConfigured(epoch, [ReplicaInfo(name, "host", 1)])
        relays[1 - chain].handle(master_of(chain), message)


def output(sequence: int, body: bytes = b"it", applied: int = 0) -> ChainOutput:
    return ChainOutput(applied, sequence, body, RELAY_BORN)


def test_outputs_of_one_machine_are_requests_of_the_other_under_their_numbers() -> None:
    contexts, relays = two()
    assert [type(m) for _, m in contexts[0].sent] == [ChainHello]
    configure(relays)
    assert contexts[1].take(ChainAttach, FIRST) == [ChainAttach(1, "relay.1", RELAY_BORN, 0)]
    for number in (1, 2):
        relays[1].handle(FIRST, output(number, b"%d" % number))
    assert contexts[0].take(ChainRequest, SECOND) == [
        ChainRequest(1, "relay.0", RELAY_BORN, 1, 0, b"1"),
        ChainRequest(1, "relay.0", RELAY_BORN, 2, 0, b"2"),
    ]


def test_what_is_not_applied_is_sent_again_and_what_is_applied_is_acknowledged() -> None:
    contexts, relays = two()
    configure(relays)
    for number in range(1, UNACKNOWLEDGED_MAX + 2):
        relays[1].handle(FIRST, output(number))
    contexts[0].sent.clear()
    contexts[1].sent.clear()
    relays[0].handle(SECOND, output(0, b"", applied=UNACKNOWLEDGED_MAX))
    (told,) = contexts[1].take(ChainRequest, FIRST)
    assert (told.sequence, told.acked, told.body) == (0, UNACKNOWLEDGED_MAX, b"")
    configure(relays, 2)
    (again,) = contexts[0].take(ChainRequest, SECOND)
    assert again.sequence == UNACKNOWLEDGED_MAX + 1


def test_a_new_relay_takes_nothing_that_was_for_the_one_before_it() -> None:
    """Else that would be the first thing it hears, and what was lost before it never came."""
    contexts, relays = two()
    relays[1].handle(FIRST, output(8))
    configure(relays)
    for number in (7, 8):
        relays[1].handle(FIRST, output(number))
    assert [m.sequence for m in contexts[0].take(ChainRequest, SECOND)] == [7, 8]
