"""What holds for every Chrome trace that a viewer can show: see `check`."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

Event = dict[str, Any]
ROUNDING_US = 0.0015
"""A trace has whole nanoseconds; sums of them as floats are that much off."""


def check(events: list[Event]) -> None:
    """Fail unless the events are well-formed.

    JSON and back they are the same; every one has a name, a time and a row; they are
    in order of time; slices have durations >= 0 and those of one thread do not overlap;
    every arrow has one start and one end, both inside slices, and does not go back.
    """
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    slices: dict[tuple[str, str], list[Event]] = {}
    flows: dict[Any, dict[str, Event]] = {}
    last_ts = float("-inf")
    for event in events:
        assert event["name"] and event["pid"] and event["tid"], event
        assert event["ts"] >= last_ts, event
        last_ts = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t"), event
        else:
            assert event["ph"] in ("s", "f"), event
            ends = flows.setdefault(event["id"], {})
            assert event["ph"] not in ends, event
            ends[event["ph"]] = event
    for row in slices.values():
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"] + ROUNDING_US, (before, after)
    for ends in flows.values():
        assert set(ends) == {"s", "f"}, ends
        assert ends["s"]["ts"] <= ends["f"]["ts"], ends
        for end in ends.values():
            assert slice_at(events, end) is not None, end


def slice_at(events: list[Event], end: Event) -> Event | None:
    """Return the slice that an end of an arrow is inside of, the last one if it may be several."""
    found = None
    for event in events:
        there = (event["pid"], event["tid"]) == (end["pid"], end["tid"]) and event["ph"] == "X"
        if there and event["ts"] <= end["ts"] <= event["ts"] + event["dur"] + ROUNDING_US:
            found = event
    return found


def arrows(events: list[Event]) -> Counter[tuple[str, str]]:
    """Return how many arrows there are from one name to another."""
    ends: dict[Any, dict[str, str]] = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            at = slice_at(events, event)
            assert at is not None, event
            ends.setdefault(event["id"], {})[event["ph"]] = at["name"]
    return Counter((each["s"], each["f"]) for each in ends.values())


def named(events: list[Event], name: str, ph: str = "X") -> list[Event]:
    """Return the events of a name."""
    return [event for event in events if event["ph"] == ph and event["name"] == name]
