"""A worker answers the driver of its node itself: single tasks, and direct calls.

**Tasks.** If a task leaves the worker's queue empty, the driver may wait for that task alone. After
`Config.direct_after` such tasks the worker opens a connection to the driver, and from then on it
sends their results to the node, which only keeps them, and then to the driver. The node delivers a
result that is not small and plain, and that of a task that has sent the node something that others
may see: else the driver could ask the node for that effect before the node has read of it. If the
worker dies between the two messages, the node delivers the worker's last answer.

**Direct calls**; see `direct_calls`. A serial actor without a name that never restarts offers
direct calls to the driver of its node, after `Config.direct_after` results of calls through the
node that left its queue empty and could have been answers. Of a call that came directly::

    ends ──small value, no effect──> ANSWERED to the driver   CallsRan to the node, for the timeline
      └───────any other────────────> WITHHELD                 DirectClosed: the driver submits the
                                                              call through the node, which gets the
                                                              result then; a later offer may follow

If the call also comes through the node, the worker does not run it again: the node gets the result,
now or when the call ends. The worker remembers the last direct call alone: the driver makes the
next one only when it has the result of the one before, from the worker or, once published, from
the node.
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
"""The worker reports so many answered calls to the node in one message,"""
RAN_S = 0.1
"""or those of so many seconds."""


def is_small(result: RangeResult) -> bool:
    """Whether a call has returned a value that a message has room for, without references."""
    return result.status == OK and not result.sizes and result.refs is None


class DirectAnswers:
    """The answers of one worker to its node's driver."""

    def __init__(self, ctx: Context, node: str, config: Config) -> None:
        self._ctx = ctx
        self._node = node
        self._after = 0 if config.scheduling_delay_s else config.direct_after
        self.driver = ""
        """The driver that the worker can reach without its node; empty: none."""
        self.allowed = False
        """Whether the worker's actor may take direct calls."""
        self.open_channel: Callable[[], bool] = lambda: True
        """Makes the connection to the driver; returns whether there is one."""
        self.is_ready: Callable[[], bool] = lambda: True
        """Whether the driver has taken the connection, and nothing waits for room in it."""
        self.effects: Callable[[], int] = lambda: 0
        """Counts the messages that the worker has sent its node and whose effect others may see."""
        self.connected = False
        """Whether there is a connection to the driver."""
        self.call = b""
        """The last direct call; empty: none yet, or the node has it, too."""
        self._open = False
        """Whether the driver may call directly now."""
        self._single = 0
        """Results since the last direct call that could have been answers."""
        self._effects_before = 0
        self._ended: tuple[RangeResult, Timing] | None = None
        """The result of the last direct call, once it has ended."""
        self._calls: list[bytes] = []
        """Answered calls that the node has not heard of."""
        self._timings: list[Timing] = []
        self._answered_s = 0.0
        self._timer: Timer | None = None

    def call_begins(self) -> None:
        """The worker begins a task or a call."""
        self._effects_before = self.effects()

    def _had_effect(self) -> bool:
        """Whether the task or call has sent the node something that others may see."""
        return self.effects() != self._effects_before

    def offer(self, spec: TaskSpec, small: bool) -> None:
        """A call has ended, with a small value or not, and left the queue empty: after some that
        could have been answered directly, offer direct calls."""
        if self._open or not self.allowed or spec.owner != self.driver or not self._after:
            return
        self._single = self._single + 1 if small and not self._had_effect() else 0
        if self._single >= self._after:
            self._single = 0
            self.connected = self.allowed = self.connected or self.open_channel()
            if self.connected:
                assert spec.extra is not None, "it is a call"
                self._open = True
                self._ctx.send(self.driver, DirectOpen(spec.extra.call))

    def answers_task(self, spec: TaskSpec) -> bool:
        """A task has ended with a small value and left the queue empty: return whether its result
        goes to the driver, too."""
        if spec.owner != self.driver or not self._after or self._had_effect():
            self._single = 0
            return False
        if self.connected:
            return self.is_ready()
        self._single += 1
        if self._single >= self._after:
            self._single = 0
            self.connected = self.open_channel()
        return False

    def begin(self, call: bytes) -> None:
        """A call has come directly."""
        self.call, self._ended = call, None

    def published(self) -> tuple[RangeResult, Timing] | None:
        """The last direct call comes through the node, too; return its result if it has ended."""
        if self._calls and self._calls[-1] == self.call:
            self._calls.pop()  # the node counts it with the result
            self._timings.pop()
        ended, self._ended, self.call = self._ended, None, b""
        return ended

    def answer(self, result: RangeResult, timing: Timing) -> None:
        """The last direct call has ended: answer the driver, or withhold the result."""
        self._ended = result, timing
        if not is_small(result) or self._had_effect():
            self._open = False
            self._ctx.send(self.driver, DirectClosed())
            return
        self._ctx.send(self.driver, TaskResults(self.driver, [result]))
        self._calls.append(result.array)
        self._timings.append(timing)
        self._answered_s = self._ctx.now()
        if len(self._calls) > RAN_MAX:
            self._report(RAN_MAX)
        if self._timer is None:
            self._timer = self._ctx.after(RAN_S, self._on_timer)

    def end(self) -> None:
        """Report all answered calls: the process ends."""
        self._report(len(self._calls))

    def _on_timer(self) -> None:
        """Report the answered calls; the last one may still be published."""
        self._timer = None
        recent = self._ctx.now() - self._answered_s < RAN_S
        self._report(len(self._calls) - recent)
        if self._calls:
            self._timer = self._ctx.after(RAN_S, self._on_timer)

    def _report(self, count: int) -> None:
        if count > 0:
            self._ctx.send(self._node, CallsRan(self._calls[:count], self._timings[:count]))
            del self._calls[:count], self._timings[:count]
