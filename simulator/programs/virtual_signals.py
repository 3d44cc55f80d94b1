"""Signals that arrive while a simulated worker's program has the thread.

An error that ends a program ends its simulated process. A signal is sent to the real process:
its handler's error is raised in the driver, as on backends where workers are real processes,
and not in the task that happened to run when the signal arrived.
"""

from __future__ import annotations

import signal
from opcode import opmap
from types import CodeType

_RAISE = opmap["RAISE_VARARGS"]


def from_handler(error: BaseException) -> bool:
    """Whether a signal's handler has raised an error, and not the program."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code_of(handler) for handler in handlers} - {None}
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        last, at = at, at.tb_next
    if type(error) is not KeyboardInterrupt or signal.default_int_handler not in handlers:
        return False
    # Python's own handler has no frame: its error comes out of any instruction but the one
    # with which a program raises.
    return last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE


def _code_of(handler: object) -> CodeType | None:
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
