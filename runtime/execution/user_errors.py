"""Errors of user code: which are the call's own, and which end the process.

Whatever a call raises is the call's error and goes to its caller, also what is no `Exception`.
SystemExit ends the process, wherever it is raised: in the worker's own loop, in a thread, in a
coroutine. So does what the world raises to end a process, and the signal of a user at a terminal
goes on to the driver. KeyboardInterrupt and asyncio's CancelledError say that the call was
cancelled.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.api.options.checks import encodable
from raytwin.runtime.session.world import World

_RUNTIME = __file__.rpartition("/execution/")[0]
_SHELL = tuple(f"{_RUNTIME}/{folder}" for folder in ("execution", "serialization", "session"))
"""The folders whose frames are between the worker's loop and user code."""
TRACEBACK_CHARS_MAX = 16_384
"""The most of a constructor's traceback, from its end, that the error of each call contains."""


class ConstructorFailed(Exception):
    """The constructor has raised, so there is no actor; the text is its traceback."""


def is_cancellation(error: BaseException) -> bool:
    """Whether an error of a call says that the call was cancelled."""
    # Few processes load asyncio, and no other process can raise its errors.
    asyncio = sys.modules.get("asyncio")
    by_loop = asyncio is not None and isinstance(error, asyncio.CancelledError)
    return by_loop or isinstance(error, KeyboardInterrupt)


def is_error(error: BaseException, world: World) -> bool:
    """Whether an error is the call's own, so that the process goes on."""
    if isinstance(error, Exception):
        return True
    ends = (SystemExit, ActorExit, *world.unwinding)
    return not isinstance(error, ends) and not world.is_for_driver(error)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a process that an error ends, by Python's rules."""
    if not isinstance(error, SystemExit):
        return 1
    code = error.code
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def crash_reason(error: BaseException) -> str:
    """Return why a process has ended, in one line."""
    name, words = type(error).__name__, str(error)
    return encodable(f"a call raised {name}: {words}" if words else f"a call raised {name}")


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the runtime's frames in front."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_SHELL):
        frames = frames.tb_next
    return frames


def traceback_text(error: BaseException) -> str:
    """Return an error's traceback as text, without the runtime's frames in front.

    Characters without an encoding, of a file's name for instance, are escaped.
    """
    lines = traceback.format_exception(type(error), error, user_traceback(error))
    return encodable("".join(lines)[-TRACEBACK_CHARS_MAX:])
