"""Errors of user code: which are the call's own, and which end the process.

An `Exception` is the call's error. So is asyncio's CancelledError, which is none: it
is what a coroutine ends with that awaits something cancelled, and its process is
well. Anything else (SystemExit, KeyboardInterrupt) ends the process, wherever it is
raised: in the worker's own loop, in a thread, in a coroutine.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from raytwin.runtime.api.options.checks import encodable

_RUNTIME = __file__.rpartition("/execution/")[0]
_SHELL = tuple(f"{_RUNTIME}/{room}" for room in ("execution", "serialization", "session"))
"""The folders whose frames stand between the worker's loop and a user's code."""
TRACEBACK_CHARS_MAX = 16_384
"""The end of a constructor's traceback that every later call is answered with."""


class ConstructorFailed(Exception):
    """There will be no actor; the text is the constructor's traceback."""


def was_cancelled(error: BaseException) -> bool:
    """Whether an error is asyncio's CancelledError."""
    # Few processes load asyncio, and only there anybody can raise it.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def is_error(error: BaseException) -> bool:
    """Whether an error is the call's own; the process goes on."""
    return isinstance(error, Exception) or was_cancelled(error)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a process that an error ends, as Python has it."""
    if not isinstance(error, SystemExit):
        return 1
    code = error.code
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def last_words(error: BaseException) -> str:
    """Return why a process has ended, in one line."""
    name, words = type(error).__name__, str(error)
    return encodable(f"a call raised {name}: {words}" if words else f"a call raised {name}")


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
    lines = traceback.format_exception(type(error), error, users_frames(error))
    return encodable("".join(lines)[-TRACEBACK_CHARS_MAX:])
