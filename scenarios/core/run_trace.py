"""Timelines of runs: what scenarios keep of theirs, and several made one file.

The events are Chrome's, see `trace`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytwin.runtime.api.backend import current
from raytwin.runtime.api.trace import Recording
from raytwin.scenarios.core import results
from raytwin.scenarios.core.excerpt import CATEGORY, excerpt
from raytwin.scenarios.core.results import ResultError

EVENTS_MAX = 5_000
"""Ranges, and other rows of each kind, that a scenario's timeline keeps beside failures."""
FILE = "trace.json"


def kept(run: str = "") -> list[dict[str, Any]]:
    """Return what a timeline keeps of the cluster that is connected; see `excerpt`.

    With ``run``, where a scenario has several, it is told from that of others.
    """
    session: Any = current()
    if session.name == "ray":
        events = session.trace(EVENTS_MAX)
    else:
        happened = sum(session.query("event_counts").values())
        events = excerpt(Recording.of(session.query), EVENTS_MAX, happened).events()
    return group(events, run) if run else events


def group(events: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    """Return a run's events in processes that are named after it."""
    found = []
    for event in events:
        named = {**event, "pid": f"{run} {event['pid']}"}
        if "id" in event:
            named["id"] = f"{run} {event['id']}"
        found.append(named)
    return found


def left_out(events: list[dict[str, Any]]) -> list[str]:
    """Return what a trace says of itself that it leaves out, a line for each run."""
    return [
        f"{event['pid'].removesuffix('trace')}{event['name']}"
        for event in events
        if event.get("cat") == CATEGORY
    ]


def find(path: Path) -> list[Path]:
    """Return the directories of the results that `path` names, at least one.

    It is what ``raytwin run --out`` wrote, one scenario in there, one backend's
    result in that, or a file of such a result. Raises ResultError for anything else.
    """
    if not path.exists():
        raise ResultError(f"{path} does not exist: give what 'raytwin run' wrote")
    folder = path.resolve()
    if not folder.is_dir():
        if folder.name not in (results.RESULT, results.ROWS, results.TIMELINE):
            raise ResultError(f"{path} is no file of a result: give what 'raytwin run' wrote")
        folder = folder.parent
    for pattern in (results.RESULT, f"*/{results.RESULT}", f"*/*/{results.RESULT}"):
        try:
            found = sorted(file.parent for file in folder.glob(pattern))
        except OSError as error:
            raise ResultError(f"cannot read {path}: {error.strerror or error}") from error
        if found:
            return found
    raise ResultError(f"{path} holds no results: 'raytwin run NAME --out {path}' makes some")


def combined(folders: list[Path]) -> list[dict[str, Any]]:
    """Return the timelines of results as one trace, each run from its own time 0.

    With several, the processes of each are named after it. Raises ResultError if
    one cannot be read, or if there is nothing in any.
    """
    events: list[dict[str, Any]] = []
    for folder in folders:
        result = results.read(folder)
        events += _placed(result.timeline, result.name, len(folders) > 1, folder)
    if not events:
        names = ", ".join(str(folder) for folder in folders)
        raise ResultError(f"no timeline in {names}: these scenarios start no cluster of raytwin's")
    return events


def _placed(
    events: list[dict[str, Any]], name: str, several: bool, folder: Path
) -> list[dict[str, Any]]:
    """Return a run's events from time 0 on, told from those of other runs."""
    try:
        timed = [event for event in events if event["ph"] != "M"]
        begin = min((event["ts"] for event in timed), default=0.0)
        found = []
        for event in events:
            moved = dict(event)
            if event["ph"] != "M":
                # To the nanosecond, as they were: slices side by side must not overlap.
                moved["ts"] = round((event["ts"] - begin) * 1e3) / 1e3
            found.append(moved)
        return group(found, name) if several else found
    except (KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        path = folder / results.TIMELINE
        raise ResultError(f"{path} is not what raytwin writes: {what}") from error


def encode(events: list[dict[str, Any]]) -> bytes:
    """Return a trace as a file's content."""
    return results.encode_timeline(events)
