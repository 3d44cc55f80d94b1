"""The toxics: one struct each, of its parameters in the form of the HTTP API, with its rule.

A rule runs whenever a chunk has arrived, there is room again, its time has come, or its parameters
have changed. It returns the time at which it wants to run again.
"""

from __future__ import annotations

import math
import random
from typing import Annotated, ClassVar

import msgspec

from raytwin.chaos.toxiproxy.link import Rule, Stage

LATE_S = 0.05
"""How late a timer may be for the stream to make up for it; more is a receiver that was slow."""
PIECE_S = 0.1
"""`Bandwidth` sends no more at once than passes in this time."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Latency(Rule):
    """Delays everything by `latency` ± `jitter` milliseconds; the order stays."""

    buffer_nbytes: ClassVar[int] = 32 * 1024 * 1024
    latency: Int64 = 0
    jitter: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        while stage.ready:
            chunk = stage.held[0]
            if stage.due_s is None:
                jitter = random.uniform(-self.jitter, self.jitter) if self.jitter > 0 else 0.0
                delay_s = (self.latency + jitter) / 1e3 if chunk.data else 0.0
                stage.due_s = chunk.arrived_s + delay_s
            if stage.due_s > now_s:
                return stage.due_s
            stage.pass_on(now_s)
        return math.inf


class Bandwidth(Rule):
    """Passes `rate` KB a second, of 1,000 bytes; nothing at 0, until that changes.

    `since_s` of the stage is when the line was free again.
    """

    rate: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        while stage.ready:
            chunk = stage.held[0]
            if not chunk.data:
                stage.pass_on(now_s)
                continue
            if self.rate <= 0:
                break
            rate = self.rate * 1e3
            nbytes = min(len(chunk.data), math.ceil(rate * PIECE_S))
            if stage.due_s is None:
                stage.due_s = max(stage.since_s, chunk.arrived_s) + nbytes / rate
            if stage.due_s > now_s:
                return stage.due_s
            stage.since_s = on_time(stage.due_s, now_s)
            stage.pass_on(now_s, nbytes)
        return math.inf


class SlowClose(Rule):
    """Delays the end of the stream by `delay` milliseconds."""

    delay: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        while stage.ready:
            chunk = stage.held[0]
            if not chunk.data and chunk.arrived_s + self.delay / 1e3 > now_s:
                return chunk.arrived_s + self.delay / 1e3
            stage.pass_on(now_s)
        return math.inf


class Timeout(Rule):
    """Drops all bytes, and closes after `timeout` milliseconds without any; never at 0.

    `since_s` of the stage is when the last bytes came. What was dropped leaves a gap, so removing
    the toxic closes the connection.
    """

    closes_when_removed: ClassVar[bool] = True
    timeout: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        while stage.held and stage.held[0].data:
            stage.since_s = stage.held[0].arrived_s
            stage.drop()
        if stage.ready:
            stage.pass_on(now_s)
        elif self.timeout > 0:
            due_s = stage.since_s + self.timeout / 1e3
            if due_s > now_s:
                return due_s
            stage.close(now_s)
        return math.inf


class ResetPeer(Rule):
    """Closes both sides `timeout` milliseconds after the first bytes, or the end, have come."""

    resets: ClassVar[bool] = True
    timeout: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        if not stage.held:
            return math.inf
        if stage.due_s is None:
            stage.due_s = now_s + self.timeout / 1e3
        if stage.due_s > now_s:
            return stage.due_s
        stage.close(now_s)
        return math.inf


class Slicer(Rule):
    """Passes slices of `average_size` ± `size_variation` bytes, `delay` microseconds apart.

    `since_s` of the stage is when the next slice may leave.
    """

    average_size: Int64 = 0
    size_variation: Int64 = 0
    delay: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        while stage.ready:
            if stage.since_s > now_s:
                return stage.since_s
            variation = max(0, self.size_variation)
            size = self.average_size + random.randint(-variation, variation)
            stage.since_s = on_time(stage.since_s, now_s) + self.delay / 1e6
            stage.pass_on(now_s, max(1, size))
        return math.inf


class LimitData(Rule):
    """Closes after `bytes` bytes."""

    bytes: Int64 = 0

    def run(self, stage: Stage, now_s: float) -> float:
        while stage.ready:
            left_nbytes = self.bytes - stage.passed_nbytes
            if stage.held[0].data and left_nbytes > 0:
                stage.pass_on(now_s, left_nbytes)
            if stage.passed_nbytes >= self.bytes:
                stage.close(now_s)
            elif stage.held and not stage.held[0].data:
                stage.pass_on(now_s)
        return math.inf


TOXICS: dict[str, type[Rule]] = {
    "bandwidth": Bandwidth,
    "latency": Latency,
    "limit_data": LimitData,
    "noop": Rule,
    "reset_peer": ResetPeer,
    "slicer": Slicer,
    "slow_close": SlowClose,
    "timeout": Timeout,
}
"""The toxics by their type."""


def on_time(due_s: float, now_s: float) -> float:
    """Return when something that was due at `due_s` happens, now: late timers do not add up."""
    return due_s if now_s - due_s < LATE_S else now_s
