"""Frames on a stream: length, then one msgpack `Frame`.

    [u32 length, big-endian][length bytes: source, destination, messages]

A frame is at most `FRAME_BYTES_MAX` long. Bytes that are no frame raise `WireError`, and
the process closes their connection: decoding checks the type of every field, so no
component ever receives a malformed message.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from raytwin.runtime.control.messages import Frame

FRAME_BYTES_MAX = 1 << 30
"""Frames are mostly far smaller, since values above 100 KB travel outside of messages; but a
task goes to its worker with all its small inputs, however many, in one message."""

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Errors of the encoder: a type, text, number, depth or length that it cannot encode."""


class WireError(ValueError):
    """Received bytes are no frame, or messages cannot be encoded as one."""


def encode(source: str, destination: str, messages: list[Any]) -> bytes:
    """Return the bytes of one frame; raises WireError if it is too long or cannot be one."""
    try:
        body = _encoder.encode(Frame(source, destination, messages))
    except _UNENCODABLE as error:
        raise WireError(f"it cannot be encoded: {error}") from error
    if len(body) > FRAME_BYTES_MAX:
        raise _too_long(len(body))
    return _LENGTH.pack(len(body)) + body


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
            (length,) = _LENGTH.unpack_from(data)
            if length == size <= FRAME_BYTES_MAX:
                return [_decode(memoryview(data)[4:])]
        buffer += data
        frames = []
        start, end = self._start, len(buffer)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(buffer, start)
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
        if start == end:
            buffer.clear()
            start = 0
        elif start > 1 << 20:
            del buffer[:start]
            start = 0
        self._start = start
        return frames
