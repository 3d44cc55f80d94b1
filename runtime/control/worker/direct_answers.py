"""The worker's side of direct calls: the offer to a driver, and the answers; see `direct_calls`.

A serial actor that never restarts offers direct calls to the driver of its node after
`Config.direct_after` results that left its queue empty. Of a call that came directly::

    runs ──plain, small──> ANSWERED to the driver   the node hears of it in `CallsRan`
     └─────any other─────> WITHHELD                 DirectClosed: the driver submits the call by the
                                                    node, which gets the result then

If the call also comes by the node, the worker does not run it again: the node gets the result, now
or when the call ends. The worker remembers the last direct call alone: the driver makes the next
one only when it has the result of the one before, from the worker or, once published, from the
node.
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.messages import (
    OK,
    CallsRan,
    DirectClosed,
    DirectOpen,
    RangeResult,
    TaskResults,
    TaskSpec,
    Timing,
)

RAN_MAX = 128
"""So many answered calls are reported to the node in one message,"""
RAN_S = 0.1
"""or those of so many seconds."""


class DirectAnswers:
    """One worker's direct calls."""

    def __init__(self, ctx: Context, node: str, config: Config) -> None:
        self._ctx = ctx
        self._node = node
        self._after = config.direct_after
        self.driver = ""
        """The driver that the worker can reach without its node; empty: none."""
        self.allowed = False
        """Whether the worker's actor may take direct calls."""
        self.open_channel: Callable[[], bool] = lambda: True
        """Makes the connection to the driver; returns whether there is one."""
        self.call = b""
        """The last direct call; empty: none yet, or the node has it, too."""
        self._ended: tuple[RangeResult, Timing] | None = None
        """The result of that call, once it has ended."""
        self.opened = False
        """Whether the worker has offered direct calls."""
        self._single = 0
        """Results for the driver that left the queue empty, until the offer."""
        self._calls: list[bytes] = []
        """Answered calls that the node has not heard of."""
        self._timings: list[Timing] = []
        self._timer: Timer | None = None

    def offer(self, spec: TaskSpec) -> None:
        """A call has ended and left the queue empty: offer direct calls after some of these."""
        if self.opened or not self.allowed or spec.owner != self.driver:
            return
        self._single += 1
        if self._single == self._after and spec.extra is not None:
            self.opened = self.open_channel()
        if self.opened:
            assert spec.extra is not None, "it is a call"
            self._ctx.send(self.driver, DirectOpen(spec.extra.call))

    def begin(self, call: bytes) -> None:
        """A call has come directly."""
        self.call, self._ended = call, None

    def published(self) -> tuple[RangeResult, Timing] | None:
        """The last direct call has come by the node, too; return its result if it has ended."""
        ended, self._ended, self.call = self._ended, None, b""
        return ended

    def answer(self, result: RangeResult, timing: Timing) -> None:
        """The last direct call has ended: answer the driver, or withhold the result."""
        self._ended = result, timing
        if result.status != OK or result.sizes or result.refs is not None:
            self._ctx.send(self.driver, DirectClosed())
            return
        self._ctx.send(self.driver, TaskResults(self.driver, [result]))
        self._calls.append(result.array)
        self._timings.append(timing)
        if len(self._calls) >= RAN_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = self._ctx.after(RAN_S, self.flush)

    def flush(self) -> None:
        """Report the answered calls to the node."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._ctx.send(self._node, CallsRan(self._calls, self._timings))
            self._calls, self._timings = [], []
