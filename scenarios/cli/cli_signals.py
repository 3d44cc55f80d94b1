"""How signals end a command: SIGTERM as an exception, so that what it has made is taken away.

The default action ends a process where it is: temporary files stay. `Terminated` is
a KeyboardInterrupt, and whatever cleans up after Ctrl-C cleans up after it. A script
of ``raytwin exec`` is ended as Python ends it, by both signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a command that was terminated, as shells have it."""


class Terminated(KeyboardInterrupt):
    """The process was sent SIGTERM."""


class Interrupted(BaseException):
    """A script did not catch KeyboardInterrupt; its traceback has been printed.

    No subclass of that, so that nothing says anything more on the way out.
    """


_owner = 0
"""The process whose SIGTERM raises."""
_raised = False
"""Whether one has come."""


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _owner:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    global _raised
    if not _raised:
        # The handler stays: by it a simulation knows whose error this is.
        _raised = True
        raise Terminated


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Have the first SIGTERM raise `Terminated` in the main thread, and ignore others after it.

    `timeout` sends two: what the first one begins to clean up is not left half done.
    Forked children end as without this. Nothing changes on another thread than the
    main one, or where SIGTERM already means something else.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    global _owner, _raised
    _owner, _raised = os.getpid(), False
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave_sigterm_alone() -> None:
    """Give SIGTERM its default action back, for a program that is to run as by itself."""
    if signal.getsignal(signal.SIGTERM) is _raise_terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
