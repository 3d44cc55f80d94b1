"""Frames on a stream: length, then one msgpack `Frame`; and packets of channels.

    frame     [u32 length][body: source, destination, messages]           big-endian
    packet    [u32 length][u32 checksum][u64 sequence][u64 acknowledged][body]

Frames travel as they are over Unix sockets and between a node and the failure detector. In a
channel (`control.channels`) they are the bodies of packets, which the checksum covers, header
included: something between two hosts may drop bytes and go on. A packet without a body
acknowledges; one whose length has the highest bit set has a `Hello` as its body.

A frame is at most `FRAME_BYTES_MAX` long. Bytes that are no frame raise `WireError`, and
the process closes their connection: decoding checks the type of every field, so no
component ever receives a malformed message.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from raytwin.runtime.control.channels.channel import Hello
from raytwin.runtime.control.messages import Frame

FRAME_BYTES_MAX = 1 << 30
"""Frames are mostly far smaller, since values above 100 KB travel outside of messages; but a
task goes to its worker with all its small inputs, however many, in one message."""

LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">IIQQ")
_NUMBERS = struct.Struct(">QQ")
_HELLO = 1 << 31
HELLO_BYTES_MAX = 1 << 10
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_hello_decoder = msgspec.msgpack.Decoder(Hello)


_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Errors of the encoder: a type, text, number, depth or length that it cannot encode."""


class WireError(ValueError):
    """Received bytes are no frame, or messages cannot be encoded as one."""


def encode(source: str, destination: str, messages: list[Any]) -> bytes:
    """Return one frame with its length, as `encode_body` without it."""
    body = encode_body(source, destination, messages)
    return LENGTH.pack(len(body)) + body


def encode_body(source: str, destination: str, messages: list[Any]) -> bytes:
    """Return the body of a frame; raises WireError if it is too long or cannot be one."""
    try:
        body = _encoder.encode(Frame(source, destination, messages))
    except _UNENCODABLE as error:
        raise WireError(f"it cannot be encoded: {error}") from error
    if len(body) > FRAME_BYTES_MAX:
        raise _too_long(len(body))
    return body


class Packet(NamedTuple):
    """A packet of a channel that has arrived."""

    sequence: int
    acknowledged: int
    frame: Frame | None
    hello: Hello | None
    nbytes: int
    """The length of its body."""


def encode_packet(sequence: int, acknowledged: int, body: bytes) -> bytes:
    """Return a packet; its body is a frame's, or empty."""
    checksum = crc32(body, crc32(_NUMBERS.pack(sequence, acknowledged)))
    return _HEADER.pack(len(body), checksum, sequence, acknowledged) + body


def encode_hello(hello: Hello) -> bytes:
    """Return the packet with which an end greets."""
    body = _encoder.encode(hello)
    checksum = crc32(body, crc32(_NUMBERS.pack(0, 0)))
    return _HEADER.pack(len(body) | _HELLO, checksum, 0, 0) + body


def _decode_packet(header: bytes, body: memoryview) -> Packet:
    length, checksum, sequence, acknowledged = _HEADER.unpack(header)
    if crc32(body, crc32(_NUMBERS.pack(sequence, acknowledged))) != checksum:
        raise WireError("a packet whose checksum is wrong")
    if length & _HELLO:
        try:
            return Packet(0, 0, None, _hello_decoder.decode(body), len(body))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"not a greeting: {error}") from error
    frame = _decode(body) if len(body) else None
    return Packet(sequence, acknowledged, frame, None, len(body))


def _decode(body: memoryview) -> Frame:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a frame: {error}") from error


def _too_long(length: int) -> WireError:
    return WireError(f"a frame of {length:,} bytes; at most {FRAME_BYTES_MAX:,} may travel")


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start = 0

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take received bytes; return the frames that they complete.

        Raises WireError for bytes that are no frame; after that the reader cannot
        be used any more.
        """
        buffer = self._buffer
        size = len(data) - 4
        if size >= 0 and not buffer:
            # In most cases exactly one frame has arrived: decode it in place.
            (length,) = LENGTH.unpack_from(data)
            if length == size <= FRAME_BYTES_MAX:
                return [_decode(memoryview(data)[4:])]
        buffer += data
        frames = []
        start, end = self._start, len(buffer)
        while end - start >= 4:
            (length,) = LENGTH.unpack_from(buffer, start)
            if length > FRAME_BYTES_MAX:
                raise _too_long(length)
            if end - start - 4 < length:
                break
            body = memoryview(buffer)[start + 4 : start + 4 + length]
            try:
                frames.append(_decode(body))
            finally:
                body.release()
            start += 4 + length
        self._start = _drop_read(buffer, start)
        return frames


def _drop_read(buffer: bytearray, start: int) -> int:
    """Drop what a reader has read of its buffer, if that is all or much; return where the rest
    begins."""
    if start == len(buffer):
        buffer.clear()
        return 0
    if start > 1 << 20:
        del buffer[:start]
        return 0
    return start


class PacketReader:
    """Cuts a stream of bytes into packets; as `FrameReader`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start = 0

    def feed(self, data: bytes | memoryview) -> list[Packet]:
        """Take received bytes; return the packets that they complete. Raises WireError."""
        buffer = self._buffer
        buffer += data
        packets = []
        start, end = self._start, len(buffer)
        while end - start >= 4:
            (length,) = LENGTH.unpack_from(buffer, start)
            most = HELLO_BYTES_MAX if length & _HELLO else FRAME_BYTES_MAX
            length &= ~_HELLO
            if length > most:
                raise _too_long(length)
            at = start + _HEADER.size
            if end - at < length:
                break
            body = memoryview(buffer)[at : at + length]
            try:
                packets.append(_decode_packet(bytes(buffer[start:at]), body))
            finally:
                body.release()
            start = at + length
        self._start = _drop_read(buffer, start)
        return packets
