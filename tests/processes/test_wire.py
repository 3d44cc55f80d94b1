"""Frames and handshakes as bytes: every cut, every mutation."""

from __future__ import annotations

import itertools
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control import messages as m
from raytwin.runtime.control.channels.channel import Hello
from raytwin.runtime.control.core.addresses import is_node
from raytwin.runtime.processes.net import auth, wire

NAMES = st.sampled_from(["gcs", "node:0", "worker:3.12", ""])
MESSAGES = st.one_of(
    st.builds(m.Blocked),
    st.builds(m.Event, st.text(), st.text(), st.text()),
    st.builds(m.Release, st.lists(st.binary(max_size=40), max_size=5)),
    st.builds(
        m.TaskResults,
        st.text(max_size=5),
        st.lists(
            st.builds(
                m.RangeResult, st.binary(max_size=20), st.integers(0, 2**32), st.integers(0, 2**32),
                st.integers(0, 2), st.binary(max_size=200), st.integers(-1, 99),
            ),
            max_size=3,
        ),
    ),
)  # fmt: skip
FRAMES = st.lists(st.tuples(NAMES, NAMES, st.lists(MESSAGES, max_size=4)), max_size=5)


def stream_of(frames: list[tuple[str, str, list[Any]]]) -> bytes:
    return b"".join(wire.encode(*frame) for frame in frames)


def in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[a:b] for a, b in itertools.pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 10**6), max_size=20))
def test_frames_come_out_however_the_stream_is_cut(
    frames: list[tuple[str, str, list[Any]]], cuts: list[int]
) -> None:
    reader = wire.FrameReader()
    found = [f for piece in in_pieces(stream_of(frames), cuts) for f in reader.feed(piece)]
    assert [(f.source, f.destination, f.messages) for f in found] == frames


@given(FRAMES, st.integers(0, 10**6))
def test_a_cut_stream_gives_whole_frames_only(
    frames: list[tuple[str, str, list[Any]]], at: int
) -> None:
    stream = stream_of(frames)
    at %= len(stream) + 1
    reader = wire.FrameReader()
    found = reader.feed(stream[:at])
    assert [(f.source, f.destination, f.messages) for f in found] == frames[: len(found)]


@given(FRAMES, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8))
def test_a_mutated_stream_gives_frames_or_an_error(
    frames: list[tuple[str, str, list[Any]]], changes: list[tuple[int, int]]
) -> None:
    stream = bytearray(stream_of(frames))
    for place, value in changes:
        if stream:
            stream[place % len(stream)] = value
    check_junk(bytes(stream))


@given(st.binary(max_size=2000))
def test_junk_gives_frames_or_an_error(junk: bytes) -> None:
    check_junk(junk)
    check_junk(struct.pack(">I", len(junk)) + junk)


def check_junk(stream: bytes) -> None:
    try:
        found = wire.FrameReader().feed(stream)
    except wire.WireError:
        return
    for frame in found:
        # What gets through is well-typed to the last field: it encodes again.
        wire.encode(frame.source, frame.destination, frame.messages)


def test_values_that_nest_without_end_are_an_error() -> None:
    nested = b"\x91" * 100_000 + b"\xc0"
    for body in (nested, b"\x93\xa1a\xa1b\x91\x95\x17\x01\xa1c" + nested):
        with pytest.raises(wire.WireError):
            wire.FrameReader().feed(struct.pack(">I", len(body)) + body)


def test_an_oversized_frame_is_refused_by_its_length_alone() -> None:
    length = wire.FRAME_BYTES_MAX + 1
    with pytest.raises(wire.WireError, match=f"{length:,} bytes"):
        wire.FrameReader().feed(struct.pack(">I", length))
    with pytest.raises(wire.WireError):
        wire.FrameReader().feed(b"\xff\xff\xff\xff")


@given(st.text(max_size=12))
def test_only_well_formed_addresses_are_nodes(text: str) -> None:
    assert not is_node(text) or text == f"node:{int(text[5:])}"
    assert not is_node("node:" + text) or text == str(int(text))


# -- packets of channels -------------------------------------------------------

HELLO = Hello("node:3", 2, 1 << 62, 7, 99)


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63), st.binary(max_size=0))),
       st.integers(1, 50))  # fmt: skip
def test_packets_survive_any_cut_of_the_stream(
    numbers: list[tuple[int, int, bytes]], step: int
) -> None:
    body = wire.encode_body("node:3", "gcs", [m.Event("it", "happened")])
    stream = wire.encode_hello(HELLO)
    for number, (sequence, acknowledged, _) in enumerate(numbers):
        stream += wire.encode_packet(sequence, acknowledged, b"" if number % 3 == 0 else body)
    reader = wire.PacketReader()
    found = [p for at in range(0, len(stream), step) for p in reader.feed(stream[at : at + step])]
    assert found[0].hello == HELLO
    for number, (packet, (sequence, acknowledged, _)) in enumerate(
        zip(found[1:], numbers, strict=True)
    ):
        assert (packet.sequence, packet.acknowledged) == (sequence, acknowledged)
        assert (packet.frame is None) == (number % 3 == 0)


@given(st.data())
def test_a_stream_that_lacks_bytes_is_never_read_as_another(
    data: st.DataObject,
) -> None:
    """A proxy may drop bytes of a living connection: no frame is lost or made up unnoticed."""
    bodies = [
        wire.encode_body("node:3", "gcs", [m.KvPut(b"k%d" % n, b"v" * n, n)]) for n in range(9)
    ]
    packets = [wire.encode_packet(n + 1, 0, body) for n, body in enumerate(bodies)]
    stream = b"".join(packets)
    start = data.draw(st.integers(0, len(stream) - 1))
    end = data.draw(st.integers(start + 1, len(stream)))
    reader = wire.PacketReader()
    found: list[wire.Packet] = []
    with suppress(wire.WireError):
        for at in range(0, len(stream), 7):
            cut = bytes(b for n, b in enumerate(stream[at : at + 7], at) if not start <= n < end)
            found += reader.feed(cut)
    for packet in found:
        body = bodies[packet.sequence - 1]
        assert packet.frame == wire.FrameReader().feed(wire.LENGTH.pack(len(body)) + body)[0]


@given(st.binary(min_size=1, max_size=200))
def test_junk_is_no_packet(junk: bytes) -> None:
    try:
        found = wire.PacketReader().feed(junk)
    except wire.WireError:
        return
    assert not found


# -- the handshake -------------------------------------------------------------

TOKEN = auth.new_token()


def test_both_sides_prove_themselves() -> None:
    for kind in (auth.CHANNEL, auth.HEARTBEATS, auth.DATA):
        challenge = auth.challenge()
        answer = auth.answer(TOKEN, challenge, kind)
        assert (len(challenge), len(answer)) == (auth.CHALLENGE_BYTES, auth.ANSWER_BYTES)
        found, proof = auth.check(TOKEN, challenge, answer)
        assert found == kind
        assert len(proof) == auth.PROOF_BYTES
        auth.check_acceptor(TOKEN, challenge, answer, proof)


@given(st.binary(min_size=auth.ANSWER_BYTES, max_size=auth.ANSWER_BYTES))
def test_a_guessed_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(auth.AuthError):
        auth.check(TOKEN, auth.challenge(), answer)


@given(st.integers(0, auth.ANSWER_BYTES - 1), st.integers(1, 255))
def test_a_changed_answer_is_refused(place: int, change: int) -> None:
    challenge = auth.challenge()
    answer = bytearray(auth.answer(TOKEN, challenge, auth.CHANNEL))
    answer[place] ^= change
    with pytest.raises(auth.AuthError):
        auth.check(TOKEN, challenge, bytes(answer))


@given(st.integers(0, auth.PROOF_BYTES - 1), st.integers(1, 255))
def test_a_changed_proof_is_refused(place: int, change: int) -> None:
    challenge = auth.challenge()
    answer = auth.answer(TOKEN, challenge, auth.CHANNEL)
    proof = bytearray(auth.check(TOKEN, challenge, answer)[1])
    proof[place] ^= change
    with pytest.raises(auth.AuthError):
        auth.check_acceptor(TOKEN, challenge, answer, bytes(proof))


def test_proofs_are_for_one_connection_one_side_and_one_token() -> None:
    challenge = auth.challenge()
    answer = auth.answer(TOKEN, challenge, auth.CHANNEL)
    with pytest.raises(auth.AuthError):
        auth.check(TOKEN, auth.challenge(), answer)  # replayed
    with pytest.raises(auth.AuthError):
        auth.check(auth.new_token(), challenge, answer)
    with pytest.raises(auth.AuthError):  # the connecting side's proof, sent back
        auth.check_acceptor(TOKEN, challenge, answer, answer[-auth.PROOF_BYTES :])
    with pytest.raises(auth.AuthError, match="kind"):
        auth.check(TOKEN, challenge, auth.answer(TOKEN, challenge, b"X"))


@given(st.binary(max_size=60))
def test_a_challenge_of_something_else_is_refused(challenge: bytes) -> None:
    with pytest.raises(auth.AuthError):
        auth.answer(TOKEN, challenge, auth.CHANNEL)


def test_messages_survive_the_wire_unchanged() -> None:
    info = m.NodeInfo(3, "127.0.0.1", 80, {"CPU": 1.0}, True, 2)
    sent = [m.RegisterNode(info), m.Query("nodes", 1, "c"), m.QueryReply(1, "c", [{"a": 1}])]
    (frame,) = wire.FrameReader().feed(wire.encode("node:3", "gcs", sent))
    assert frame.messages == sent
    assert isinstance(frame, m.Frame) and msgspec.structs.astuple(frame)[0] == "node:3"
