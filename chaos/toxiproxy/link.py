"""A link carries the bytes of one direction of a connection through the stages of its toxics.

See the package's theory of operation. Whoever calls `feed`, `add`, `update` or `remove` calls
`pump` next; so does whoever gives the sink room again.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import ClassVar, NamedTuple, Protocol

import msgspec

Data = bytes | memoryview
END = b""
"""The end of a stream, as a chunk."""


class Chunk(NamedTuple):
    """Bytes, and when a stage got them."""

    data: Data
    arrived_s: float


class Receiver(Protocol):
    """The successor of a stage: another stage, or the sink, which is a socket."""

    @property
    def has_room(self) -> bool:
        """Whether `take` is welcome."""

    def take(self, data: Data, now_s: float) -> None:
        """Take the bytes, or the end of the stream."""


class Rule(msgspec.Struct):
    """The parameters of a toxic, and what it does to chunks; by itself it passes all on."""

    buffer_nbytes: ClassVar[int] = 64 * 1024
    """How many bytes a stage holds before it has no room."""
    closes_when_removed: ClassVar[bool] = False
    """Whether the removal of the toxic closes the connection."""
    resets: ClassVar[bool] = False
    """Whether the connection ends by RST, whatever closes it."""

    def run(self, stage: Stage, now_s: float) -> float:
        """Pass on what may leave; return when to run again, infinity if only events count."""
        while stage.ready:
            stage.pass_on(now_s)
        return math.inf


class Toxic(msgspec.Struct, eq=False):
    """A toxic of a proxy, in the form of the HTTP API."""

    attributes: Rule
    name: str
    type: str
    stream: str
    toxicity: float
    """The share of the connections that it applies to."""


class Stage:
    """One toxic on one link: the chunks that it holds, and the state of its rule.

    `due_s` and `since_s` are the toxic's: when the first chunk leaves, None until it has decided;
    and a time in the past, which is when the toxic began or changed until it says otherwise.
    """

    __slots__ = (
        "due_s", "ended", "following", "held", "held_nbytes", "link", "passed_nbytes", "removed",
        "rule", "since_s", "toxic",
    )  # fmt: skip

    def __init__(self, link: Link, toxic: Toxic, now_s: float) -> None:
        self.link = link
        self.toxic = toxic
        self.following: Receiver = link.sink
        self.held: deque[Chunk] = deque()
        self.held_nbytes = 0
        self.passed_nbytes = 0
        self.ended = False
        self.removed = False
        self.draw(now_s)

    def draw(self, now_s: float) -> None:
        """Begin with the toxic's present parameters, or without it, by its toxicity."""
        self.rule = self.toxic.attributes if random.random() < self.toxic.toxicity else Rule()
        self.due_s: float | None = None
        self.since_s = now_s

    @property
    def has_room(self) -> bool:
        return self.held_nbytes < self.rule.buffer_nbytes

    @property
    def ready(self) -> bool:
        """Whether there is a chunk and room for it behind this stage."""
        return bool(self.held) and self.following.has_room

    def take(self, data: Data, now_s: float) -> None:
        if not self.ended:
            self.held.append(Chunk(data, now_s))
            self.held_nbytes += len(data)

    def pass_on(self, now_s: float, nbytes_max: int | None = None) -> None:
        """Pass the first chunk on, or no more than `nbytes_max` of its bytes."""
        data, arrived_s = self.drop()
        if nbytes_max is not None and nbytes_max < len(data):
            data, rest = data[:nbytes_max], data[nbytes_max:]
            self.held.appendleft(Chunk(rest, arrived_s))
            self.held_nbytes += len(rest)
        self.passed_nbytes += len(data)
        self.ended = not data
        self.due_s = None
        self.following.take(data, now_s)

    def drop(self) -> Chunk:
        """Take the first chunk away and return it."""
        chunk = self.held.popleft()
        self.held_nbytes -= len(chunk.data)
        return chunk

    def close(self, now_s: float) -> None:
        """End the connection behind the bytes that have been passed on."""
        if not self.ended:
            self.ended = True
            self.held.clear()
            self.held_nbytes = 0
            self.link.closes = True
            self.following.take(END, now_s)


class Link:
    """The stages of one direction, from `first` to `sink`."""

    __slots__ = ("closes", "first", "sink", "stages")

    def __init__(self, sink: Receiver) -> None:
        self.sink = sink
        self.first: Receiver = sink
        self.stages: list[Stage] = []
        self.closes = False
        """Whether the end of its stream closes both sides of the connection."""

    def add(self, toxic: Toxic, now_s: float) -> None:
        """Put a toxic behind all others."""
        self.stages.append(Stage(self, toxic, now_s))
        self._connect()

    def update(self, toxic: Toxic, now_s: float) -> None:
        """Go on with the new parameters of a toxic."""
        for stage in self.stages:
            if stage.toxic is toxic:
                stage.draw(now_s)

    def remove(self, toxic: Toxic, now_s: float) -> None:
        """Let the chunks that a toxic holds go on, or close the connection if it has lost some."""
        for stage in self.stages:
            if stage.toxic is toxic:
                if stage.rule.closes_when_removed:
                    stage.close(now_s)
                stage.removed = True
                stage.rule = Rule()

    def pump(self, now_s: float) -> float:
        """Move what may move; return the time to do so again, infinity if only events count."""
        passed_nbytes, before = 0, -1
        while passed_nbytes != before:  # A stage that passes bytes on makes room for those before.
            before = passed_nbytes
            due_s = math.inf
            for stage in self.stages:
                if not stage.ended:
                    due_s = min(due_s, stage.rule.run(stage, now_s))
            passed_nbytes = sum(stage.passed_nbytes for stage in self.stages)
        if any(stage.removed and not stage.held for stage in self.stages):
            self.stages = [stage for stage in self.stages if stage.held or not stage.removed]
            self._connect()
        return due_s

    def _connect(self) -> None:
        following: Receiver = self.sink
        for stage in reversed(self.stages):
            stage.following = following
            following = stage
        self.first = following
