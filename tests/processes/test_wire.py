"""Frames and handshakes as bytes: every cut, every mutation."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.runtime.control import messages as m
from raytwin.runtime.processes.net import admission, auth, wire

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
    assert reader.pending == 0


@given(FRAMES, st.integers(0, 10**6))
def test_a_cut_stream_gives_whole_frames_only(
    frames: list[tuple[str, str, list[Any]]], at: int
) -> None:
    stream = stream_of(frames)
    at %= len(stream) + 1
    reader = wire.FrameReader()
    found = reader.feed(stream[:at])
    assert [(f.source, f.destination, f.messages) for f in found] == frames[: len(found)]
    assert reader.pending == at - len(stream_of(frames[: len(found)]))


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
        found = wire.FrameReader(frame_bytes_max=1 << 16).feed(stream)
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
    reader = wire.FrameReader(frame_bytes_max=1000)
    with pytest.raises(wire.WireError, match="1,001 bytes"):
        reader.feed(struct.pack(">I", 1001))
    with pytest.raises(wire.WireError):
        wire.FrameReader().feed(b"\xff\xff\xff\xff")


def test_what_is_too_long_for_one_frame_goes_in_several() -> None:
    sent = [m.Event("kind", str(i), "x" * (i * 70 % 3000)) for i in range(50)]
    frames = wire.encode_all("node:0", "gcs", sent, 10_000)
    assert len(frames) > 5
    reader = wire.FrameReader(frame_bytes_max=10_000)
    found = [message for data in frames for f in reader.feed(data) for message in f.messages]
    assert found == sent


# -- who may send what ---------------------------------------------------------

WORLD_ONLY = {
    m.Allocate, m.Allocated, m.Free, m.Fetch, m.Fetched, m.StartWorker, m.StopWorker,
    m.KillWorker, m.WorkerDied, m.NodeUnreachable, m.LoadChanged, m.Spill, m.Spilled,
    m.DropSpilled, m.NoRoom, m.ReplicaLost, m.StartReplica, m.ClientGone,
    m.ReplicasFound, m.StopReplica, m.LogEpoch, m.ReadRows,
    m.LogCommands, m.LogSnapshot, m.Logged, m.StoreRows, m.LoadRow, m.RowLoaded, m.ActorPlaced,
    m.TooLong, m.DirectClosed,
}  # fmt: skip
"""These never leave their process."""
NODE_TO_CLIENT = {
    m.TaskResults, m.ObjectsReady, m.ObjectAllocated, m.QueryReply, m.FunctionBlob, m.RunTasks,
    m.TakeBack, m.Resume, m.Exit, m.RestoreActor, m.GiveBack, m.BorrowersGone,
}  # fmt: skip
"""A client trusts its node, which has started it."""
BETWEEN_MACHINES = {m.TasksPlaced, m.NodesSeen, m.AskReplay, m.ActorSettled}
"""The head's relay carries them from one chain of the GCS to another."""


def test_every_message_has_its_place_in_the_tables() -> None:
    admitted = set(admission.WORKER_TO_NODE | admission.NODE_TO_NODE)
    for table in (admission.NODE_TO_HEAD, admission.HEAD_TO_NODE):
        for kinds in table.values():
            admitted |= kinds
    for kinds in (
        admission.CLIENT_TO_MASTER, admission.REPLICA_TO_MASTER, admission.MASTER_TO_REPLICA,
        admission.CLIENT_TO_REPLICA, admission.REPLICA_TO_CLIENT, admission.REPLICA_TO_REPLICA,
        admission.NODE_TO_SHARD, admission.MASTER_TO_CLIENT,
        admission.WORKER_TO_DRIVER, admission.DRIVER_TO_WORKER,
    ):  # fmt: skip
        admitted |= kinds
    every = set(m.Message.__args__)
    assert admitted | WORLD_ONLY | NODE_TO_CLIENT | BETWEEN_MACHINES == every
    assert not admitted & WORLD_ONLY


@given(st.text(max_size=12))
def test_only_well_formed_addresses_are_nodes(text: str) -> None:
    assert not admission.is_node(text) or text == f"node:{int(text[5:])}"
    assert not admission.is_node("node:" + text) or text == str(int(text))


# -- the handshake -------------------------------------------------------------

TOKEN = auth.new_token()


def test_both_sides_prove_themselves() -> None:
    for kind in (auth.CONTROL, auth.DATA):
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
    answer = bytearray(auth.answer(TOKEN, challenge, auth.CONTROL))
    answer[place] ^= change
    with pytest.raises(auth.AuthError):
        auth.check(TOKEN, challenge, bytes(answer))


@given(st.integers(0, auth.PROOF_BYTES - 1), st.integers(1, 255))
def test_a_changed_proof_is_refused(place: int, change: int) -> None:
    challenge = auth.challenge()
    answer = auth.answer(TOKEN, challenge, auth.CONTROL)
    proof = bytearray(auth.check(TOKEN, challenge, answer)[1])
    proof[place] ^= change
    with pytest.raises(auth.AuthError):
        auth.check_acceptor(TOKEN, challenge, answer, bytes(proof))


def test_proofs_are_for_one_connection_one_side_and_one_token() -> None:
    challenge = auth.challenge()
    answer = auth.answer(TOKEN, challenge, auth.CONTROL)
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
        auth.answer(TOKEN, challenge, auth.CONTROL)


def test_messages_survive_the_wire_unchanged() -> None:
    info = m.NodeInfo(3, "127.0.0.1", 80, {"CPU": 1.0}, True, 2)
    sent = [m.RegisterNode(info), m.Query("nodes", 1, "c"), m.QueryReply(1, "c", [{"a": 1}])]
    (frame,) = wire.FrameReader().feed(wire.encode("node:3", "gcs", sent))
    assert frame.messages == sent
    assert isinstance(frame, m.Frame) and msgspec.structs.astuple(frame)[0] == "node:3"


# -- what is longer than a frame -----------------------------------------------

BULK = b"\xa5" * 700


def long_one(kind: type) -> Any:
    """Return a message of a type in which every list, tuple and bytes is long."""
    return kind(*(long_value(field.type, kind) for field in msgspec.inspect.type_info(kind).fields))


def long_value(kind: Any, where: Any) -> Any:
    inspect = msgspec.inspect
    if isinstance(kind, inspect.StructType):
        if kind.cls is where:
            return None
        return kind.cls(*(long_value(field.type, kind.cls) for field in kind.fields))
    if isinstance(kind, inspect.ListType | inspect.CollectionType):
        return [long_value(kind.item_type, where)] * 3
    if isinstance(kind, inspect.VarTupleType):
        return (long_value(kind.item_type, where),) * 3
    if isinstance(kind, inspect.TupleType):
        return tuple(long_value(item, where) for item in kind.item_types)
    if isinstance(kind, inspect.DictType):
        return {long_value(kind.key_type, where): long_value(kind.value_type, where)}
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls))
    if isinstance(kind, inspect.UnionType):
        return long_value(kind.types[0], where)
    plain = {
        inspect.BytesType: BULK, inspect.StrType: "x" * 700, inspect.IntType: 7,
        inspect.FloatType: 0.5, inspect.BoolType: True, inspect.AnyType: ["x" * 700],
    }  # fmt: skip
    return plain.get(type(kind))


VARIABLE = [
    kind for kind in m.Message.__args__ if len(msgspec.msgpack.encode(long_one(kind))) > 600
]


def test_most_messages_may_be_long() -> None:
    assert len(VARIABLE) > 80
    assert {m.ActorCalls, m.LogCalls, m.SaveActor, m.ActorLineage, m.ChainRequest} <= set(VARIABLE)


@pytest.mark.parametrize("kind", VARIABLE, ids=lambda kind: kind.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_a_message_that_is_longer_than_a_frame_arrives(kind: type, data: Any) -> None:
    bytes_max = data.draw(st.integers(1, 600))
    before, after = m.Event("kind", "before"), m.Event("kind", "after")
    in_one = wire.encode("node:0", "gcs", [before, long_one(kind), after])
    ((_, _, sent),) = map(msgspec.structs.astuple, wire.FrameReader().feed(in_one))
    stream = b"".join(wire.encode_all("node:0", "gcs", sent, max(bytes_max, 60)))
    cuts = data.draw(st.lists(st.integers(0, 10**6), max_size=10))
    reader = wire.FrameReader(frame_bytes_max=max(bytes_max, 60))
    frames = [frame for piece in in_pieces(stream, cuts) for frame in reader.feed(piece)]
    assert [message for frame in frames for message in frame.messages] == sent
    assert reader.pending == 0


def test_pieces_are_joined_up_to_a_limit() -> None:
    message = m.Event("kind", "x" * 5_000)
    with pytest.raises(wire.WireError, match="at most 4,000 may travel"):
        wire.encode_all("node:0", "gcs", [message], 1_000, 4_000)
    (stream,) = wire.encode_all("node:0", "gcs", [message], 1_000)
    with pytest.raises(wire.WireError, match="at most 4,000 may travel"):
        wire.FrameReader(1_000, 4_000).feed(stream)
