"""Frames on a stream: length, then one msgpack `Frame`.

    [u32 length, big-endian][length bytes: source, destination, messages]

A frame is at most `FRAME_BYTES_MAX` long between nodes, and
`LOCAL_FRAME_BYTES_MAX` between a node and its own clients. A message that is longer
travels in pieces: each but the last has the top bit of its length set, and the reader
joins them, up to `MESSAGE_BYTES_MAX`. Bytes that are no frame raise `WireError`, and
their connection is closed: decoding checks the type of every field, so
nothing malformed gets further than this file.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from raytwin.runtime.control.messages import Frame

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Few messages are longer, since values above 100 KB travel outside of messages."""
LOCAL_FRAME_BYTES_MAX = 1024 * 1024 * 1024
"""A task is sent to its worker with all its small inputs, however many, in one message."""
MESSAGE_BYTES_MAX = 1024 * 1024 * 1024
"""The longest message that a reader joins; a sender cannot send a longer one."""

_MORE = 1 << 31
"""In a length: the next piece belongs to this one."""
_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Errors of the encoder: a type, text, number, depth or length that it cannot encode."""


class WireError(ValueError):
    """Received bytes are no frame, or messages cannot be encoded as one."""


def encode(
    source: str, destination: str, messages: list[Any], bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """Return the bytes of one frame; raises WireError if it is too long or cannot be one."""
    body = _encode(source, destination, messages)
    if len(body) > bytes_max:
        raise _too_long(len(body), bytes_max)
    return _LENGTH.pack(len(body)) + body


def encode_whole(source: str, destination: str, messages: list[Any], bytes_max: int) -> bytes:
    """Return the bytes of one frame, none if it would be too long: see `encode_all`.

    Raises WireError if a message cannot be encoded.
    """
    body = _encode(source, destination, messages)
    length = len(body)
    return _LENGTH.pack(length) + body if length <= bytes_max else b""


def _encode(source: str, destination: str, messages: list[Any]) -> bytes:
    try:
        return _encoder.encode(Frame(source, destination, messages))
    except _UNENCODABLE as error:
        raise WireError(f"it cannot be encoded: {error}") from error


def _decode(body: memoryview) -> Frame:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a frame: {error}") from error


def _too_long(length: int, bytes_max: int) -> WireError:
    return WireError(f"a frame of {length:,} bytes; at most {bytes_max:,} may travel")


def _in_pieces(body: bytes, bytes_max: int, message_bytes_max: int) -> bytes:
    """Return the bytes of a message that is longer than a frame, cut into pieces."""
    if len(body) > message_bytes_max:
        raise _too_long(len(body), message_bytes_max)
    pieces = bytearray()
    for at in range(0, len(body), bytes_max):
        piece = body[at : at + bytes_max]
        more = _MORE if at + bytes_max < len(body) else 0
        pieces += _LENGTH.pack(len(piece) | more)
        pieces += piece
    return bytes(pieces)


def encode_all(
    source: str,
    destination: str,
    messages: list[Any],
    bytes_max: int = FRAME_BYTES_MAX,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> list[bytes]:
    """Return the bytes of as many frames as the messages need, mostly one.

    Raises WireError if a single message is longer than `message_bytes_max`, or cannot
    be encoded.
    """
    body = _encode(source, destination, messages)
    if len(body) <= bytes_max:
        return [_LENGTH.pack(len(body)) + body]
    if len(messages) == 1:
        return [_in_pieces(body, bytes_max, message_bytes_max)]
    half = len(messages) // 2
    limits = bytes_max, message_bytes_max
    return encode_all(source, destination, messages[:half], *limits) + encode_all(
        source, destination, messages[half:], *limits
    )


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        self._max = frame_bytes_max
        self._joined_max = message_bytes_max
        self._buffer = bytearray()
        self._pieces = bytearray()
        """The pieces so far of a message that travels in several."""
        self._start = 0

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take received bytes; return the frames that they complete.

        Raises WireError for bytes that are no frame; the reader is then of no
        further use.
        """
        buffer = self._buffer
        size = len(data) - 4
        if size >= 0 and not buffer and not self._pieces:
            # Mostly exactly one frame arrives: decode it in place.
            (header,) = _LENGTH.unpack_from(data)
            if header == size <= self._max:
                return [_decode(memoryview(data)[4:])]
        buffer += data
        frames = []
        start, end = self._start, len(buffer)
        while end - start >= 4:
            (header,) = _LENGTH.unpack_from(buffer, start)
            length = header & ~_MORE
            if length > self._max:
                raise _too_long(length, self._max)
            if end - start - 4 < length:
                break
            body = memoryview(buffer)[start + 4 : start + 4 + length]
            if header & _MORE or self._pieces:
                self._pieces += body
                body.release()
                if len(self._pieces) > self._joined_max:
                    raise _too_long(len(self._pieces), self._joined_max)
                if header & _MORE:
                    start += 4 + length
                    continue
                joined, self._pieces = self._pieces, bytearray()
                body = memoryview(joined)
            try:
                frames.append(_decode(body))
            finally:
                body.release()
            start += 4 + length
        if start == end:
            buffer.clear()
            start = 0
        elif start > 1 << 20:
            del buffer[:start]
            start = 0
        self._start = start
        return frames

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer) - self._start
