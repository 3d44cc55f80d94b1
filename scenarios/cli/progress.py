"""How long work shows that it is alive, always on stderr.

On a terminal: one bar. Elsewhere (a pipe, CI): a plain line when a stretch of
work begins, and at most one more every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from raytwin.scenarios.core.scenario import Progress

LINE_INTERVAL_S = 5.0


class Bar:
    """A `Progress` for a terminal."""

    def __init__(self, console: Console) -> None:
        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._rich.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._rich.stop()

    def begin(self, label: str, total: float | None = None) -> None:
        self._rich.remove_task(self._task)  # a task that is reset would keep its old total
        self._task = self._rich.add_task(label, total=total)

    def advance(self, amount: float = 1.0) -> None:
        self._rich.advance(self._task, amount)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while something is written to stdout."""
        self._rich.stop()
        try:
            yield
        finally:
            self._rich.start()

    def say(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False)


class Lines:
    """A `Progress` for everything that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._total: float | None = None
        self._done = 0.0
        self._said_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stream.flush()

    def begin(self, label: str, total: float | None = None) -> None:
        self._label, self._total, self._done = label, total, 0.0
        self.say(label)

    def advance(self, amount: float = 1.0) -> None:
        self._done += amount
        if time.monotonic() - self._said_s >= LINE_INTERVAL_S:
            of = f" of {self._total:g}" if self._total else ""
            self.say(f"{self._label}: {self._done:g}{of}")

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Nothing is in the way of what is written to stdout."""
        self._stream.flush()
        yield

    def say(self, text: str) -> None:
        self._said_s = time.monotonic()
        print(text, file=self._stream, flush=True)


class Part:
    """The `Progress` of one part of longer work: each label begins with where that is."""

    def __init__(self, whole: Progress, where: Callable[[], str]) -> None:
        self._whole = whole
        self._where = where

    def begin(self, label: str, total: float | None = None) -> None:
        self._whole.begin(f"{self._where()}: {label}", total)

    def advance(self, amount: float = 1.0) -> None:
        self._whole.advance(amount)

    def say(self, text: str) -> None:
        self._whole.say(text)


def terminal() -> Bar | Lines:
    """Return the `Progress` that fits stderr, to be used in a ``with``."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(sys.stderr)


__all__ = ["Bar", "Lines", "Part", "Progress", "terminal"]
