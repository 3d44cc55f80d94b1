"""Tracebacks as users want them: without the runtime's frames in front."""

from __future__ import annotations

import traceback
from types import TracebackType

from raytwin.runtime.api.options.checks import encodable

_RUNTIME = __file__.rpartition("/execution/")[0]
_SHELL = tuple(f"{_RUNTIME}/{room}" for room in ("execution", "serialization", "session"))
"""The folders whose frames stand between the worker's loop and a user's code."""
TRACEBACK_CHARS_MAX = 16_384
"""The end of a constructor's traceback that every later call is answered with."""


def users_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the runtime's frames in front."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_SHELL):
        frames = frames.tb_next
    return frames


def lines_of(error: BaseException) -> str:
    """Return an error's traceback, without the runtime's frames in front.

    What of its text has no encoding, as of a file's name, is escaped.
    """
    return _text(traceback.format_exception(type(error), error, users_frames(error)))


def all_lines_of(error: BaseException) -> str:
    """Return the traceback of an error of the runtime's own, all of it.

    If the program's own code keeps it from being told, it says so.
    """
    try:
        lines = traceback.format_exception(error)
    except Exception as failed:
        name, why = type(error).__name__, type(failed).__name__
        lines = [f"{name}, whose traceback cannot be told: that raises {why}\n"]
    return _text(lines)


def _text(lines: list[str]) -> str:
    return encodable("".join(lines)[-TRACEBACK_CHARS_MAX:])
