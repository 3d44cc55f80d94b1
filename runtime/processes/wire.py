"""Frames on a stream: length, then one msgpack `Frame`.

    [u32 length, big-endian][length bytes: source, destination, messages]

A frame is at most `FRAME_BYTES_MAX` long between nodes, and
`LOCAL_FRAME_BYTES_MAX` between a node and its own clients. Whatever is not a frame raises
`WireError`, and the connection that it came on is closed: decoding checks the
type of every field, so nothing malformed gets further than this file.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from runtime.control.messages import Frame

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Larger than any turn's messages: values above 100 KB are not in messages."""
LOCAL_FRAME_BYTES_MAX = 1024 * 1024 * 1024
"""A task is sent to its worker with all its small inputs, however many, in one message."""

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class WireError(ValueError):
    """What was received is not a frame."""


def encode(
    source: str, destination: str, messages: list[Any], bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """Return the bytes of one frame; raises WireError if it is too long."""
    body = _encoder.encode(Frame(source, destination, messages))
    if len(body) > bytes_max:
        raise WireError(f"a frame of {len(body):,} bytes; at most {bytes_max:,} may travel")
    return _LENGTH.pack(len(body)) + body


def encode_all(
    source: str, destination: str, messages: list[Any], bytes_max: int = FRAME_BYTES_MAX
) -> list[bytes]:
    """Return the bytes of as many frames as the messages need, mostly one.

    Raises WireError if a single message is too long for a frame.
    """
    try:
        return [encode(source, destination, messages, bytes_max)]
    except WireError:
        if len(messages) == 1:
            raise
    half = len(messages) // 2
    return encode_all(source, destination, messages[:half], bytes_max) + encode_all(
        source, destination, messages[half:], bytes_max
    )


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._max = frame_bytes_max
        self._buffer = bytearray()
        self._start = 0

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take what was received; return the frames it completes.

        Raises WireError for what cannot be a frame; the reader is then of no
        further use.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        start, end = self._start, len(buffer)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self._max:
                raise WireError(f"a frame of {length:,} bytes; at most {self._max:,} may travel")
            if end - start - 4 < length:
                break
            body = memoryview(buffer)[start + 4 : start + 4 + length]
            try:
                frames.append(_decoder.decode(body))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise WireError(f"not a frame: {error}") from error
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
