"""What holds for every Chrome trace that a viewer can show: see `check`."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

Event = dict[str, Any]
ROUNDING_US = 0.0015
"""A trace has whole nanoseconds; sums of them as floats are that much off."""


def check(events: list[Event]) -> None:
    """Fail unless the events are well-formed.

    JSON and back they are the same; every one has a name, a time and a row; they are
    in order of time; slices have durations >= 0 and those of one thread do not overlap.
    """
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    slices: dict[tuple[str, str], list[Event]] = {}
    last_ts = float("-inf")
    for event in events:
        assert event["name"] and event["pid"] and event["tid"], event
        assert event["ts"] >= last_ts, event
        last_ts = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            assert event["ph"] == "i", event
            assert event["s"] in ("g", "p", "t"), event
    for row in slices.values():
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"] + ROUNDING_US, (before, after)


def named(events: list[Event], name: str, ph: str = "X") -> list[Event]:
    """Return the events of a name."""
    return [event for event in events if event["ph"] == ph and event["name"] == name]
