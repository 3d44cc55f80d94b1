"""Progress: plain lines for a pipe, seldom; a bar for a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from raytwin.scenarios.cli import progress


def test_lines_are_few() -> None:
    stream = io.StringIO()
    with progress.Lines(stream) as shown:
        shown.begin("work", 1000)
        for _ in range(1000):
            shown.advance()
        shown.say("a word")
    assert stream.getvalue().splitlines() == ["work", "a word"]


def test_lines_come_when_it_is_long() -> None:
    stream = io.StringIO()
    shown = progress.Lines(stream)
    shown.begin("work", 10)
    shown._said_s -= progress.LINE_INTERVAL_S
    shown.advance(4)
    assert stream.getvalue().splitlines() == ["work", "work: 4 of 10"]


def test_bar_shows_labels_as_they_are() -> None:
    stream = io.StringIO()
    with progress.Bar(Console(file=stream, force_terminal=True, width=100)) as shown:
        shown.begin("nodes [10]", 2)
        shown.advance()
        shown.say("half [way]")
        with shown.aside():
            print("between", file=stream)
        shown.begin("no total")
    assert "0/?" in stream.getvalue().rpartition("no total")[2]
    assert "nodes [10]" in stream.getvalue()
    assert "half [way]" in stream.getvalue()
