"""Signals that come while a simulated worker's program has the thread.

Whatever ends a program ends its process, which is a simulated one. A signal is sent to
the real one: its handler raises in the driver, as it does where workers are processes of
their own, and not in the task during which it happened to come.
"""

from __future__ import annotations

import signal
from opcode import opmap
from types import CodeType

_RAISE = opmap["RAISE_VARARGS"]


def from_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised an error, and not the program."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code_of(handler) for handler in handlers} - {None}
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        last, at = at, at.tb_next
    if type(error) is not KeyboardInterrupt or signal.default_int_handler not in handlers:
        return False
    # Python's own handler has no frame. What it raises comes out of any instruction but
    # the one with which a program raises.
    return last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE


def _code_of(handler: object) -> CodeType | None:
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
