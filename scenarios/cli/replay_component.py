"""``raytwin replay --component``: one real component, fed its journal in this process."""

from __future__ import annotations

import bdb
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from raytwin.runtime.control.scheduling.policies import make_policy
from raytwin.runtime.journal import JournalError, JournalReader, Origin, Turn
from raytwin.scenarios.cli import progress
from raytwin.scenarios.core.scenario import UsageError
from raytwin.simulator.machine.replayed_component import ReplayedTurn, Sent, replay

SHOWN_CHARACTERS = 1_000
"""A longer message is cut."""
SHOWN_MESSAGES = 10
"""Of each source, and of each side of a difference."""
ADVANCE_TURNS = 100


class DebuggerLeft(Exception):
    """The user has quit the debugger; the message says in which turn."""


def replay_component(path: Path, until: int | None, stop_before: int | None) -> tuple[bool, str]:
    """Replay a component's journal to its end, or to turn `until`.

    Calls `breakpoint` just before turn `stop_before`. Returns whether all turns agree, and text for
    the user. Raises UsageError for what cannot be replayed, and DebuggerLeft.
    """
    try:
        reader = JournalReader(path)
        origin = _checked(reader, until, stop_before)
        turns = reader.turns if until is None else until + 1
        found = _first_difference(reader, origin, turns, stop_before)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except JournalError as error:
        raise UsageError(str(error)) from error
    if found is None or found.agrees:
        lines = [_agreement(reader, origin, turns, found)]
    else:
        lines = [*_difference(reader, origin, found), *_advice(path, found.number)]
    if reader.cut_bytes and turns == reader.turns:
        lines.append(
            f"{path} is cut off: of turn {reader.turns} it has {reader.cut_bytes:,} bytes only"
        )
    return found is None or found.agrees, "\n".join(lines)


def _checked(reader: JournalReader, until: int | None, stop_before: int | None) -> Origin:
    """Return the origin of a component that can be replayed up to these turns."""
    path, origin = reader.path, reader.origin
    if origin is None:
        raise JournalError(
            f"{path} is the journal of a simulation, of several components: it runs in one process,"
            " where a debugger can stop it"
        )
    if not reader.turns:
        raise JournalError(f"{path} is cut off before its first turn")
    last = reader.turns - 1
    for option, turn in (("--until", until), ("--break", stop_before)):
        if turn is not None and turn > last:
            raise UsageError(f"{option} {turn}: the last turn of {path} is {last}")
    if until is not None and stop_before is not None and stop_before > until:
        raise UsageError(f"--break {stop_before} is after --until {until}")
    if ":" in origin.config.policy:
        try:
            make_policy(origin.config)
        except ValueError as error:
            raise UsageError(f"{error}: its directory belongs on PYTHONPATH") from error
    return origin


def _first_difference(
    reader: JournalReader, origin: Origin, turns: int, stop_before: int | None
) -> ReplayedTurn | None:
    """Return the first turn that differs, or the one in which the component raised as it did then.

    None: all turns before number `turns` agree.
    """
    with progress.terminal() as shown:
        shown.begin(f"replaying {origin.component}", turns)
        replayed = replay(origin, reader, stop_before)
        for number in range(turns):
            try:
                with shown.aside() if number == stop_before else nullcontext():
                    each = next(replayed)
            except bdb.BdbQuit:
                raise DebuggerLeft(f"the debugger was left in turn {number}") from None
            if not each.agrees or each.error is not None:
                return each
            if number % ADVANCE_TURNS == ADVANCE_TURNS - 1:
                shown.advance(ADVANCE_TURNS)
    return None


def _agreement(
    reader: JournalReader, origin: Origin, turns: int, crash: ReplayedTurn | None
) -> str:
    ended = f"the last one raises, as it did: {crash.turn.error}" if crash is not None else ""
    of = "" if turns == reader.turns else f" of {reader.turns:,}"
    count = turns if crash is None else crash.number + 1
    text = f"{origin.component}: {count:,}{of} turns replayed, all outputs agree"
    return f"{text}; {ended}" if ended else text


def _advice(path: Path, number: int) -> Iterator[str]:
    if number:
        yield f"in a debugger: raytwin replay --component {path} --break {number}"


def _difference(reader: JournalReader, origin: Origin, found: ReplayedTurn) -> Iterator[str]:
    """Yield the lines about a turn that differs: what it raises, its input, and what it sends."""
    turn = found.turn
    began_s = next(iter(reader)).now_s
    yield (
        f"{origin.component}: turn {found.number:,} of {reader.turns:,} differs,"
        f" {turn.now_s - began_s:.6f} s after its start"
    )
    if turn.error:
        yield f"  expected: it raises {_cut(turn.error)}"
    if found.error is not None:
        yield f"  actual: it raises {_cut(repr(found.error))}"
        for line in traceback.format_exception(found.error):
            yield from (f"    {each}" for each in line.rstrip().splitlines())
    yield from _inputs(found.number, turn)
    yield from _outputs(turn.outputs, found.sent)


def _inputs(number: int, turn: Turn) -> Iterator[str]:
    if not number:
        yield "  input: none, it is made"
    if turn.timer:
        yield f"  input: timer {turn.timer}"
    for source, messages in turn.inputs:
        for message in messages[:SHOWN_MESSAGES]:
            yield f"  input from {source}: {_cut(repr(message))}"
        yield from _more(len(messages) - SHOWN_MESSAGES)


def _outputs(expected: Sent, actual: Sent) -> Iterator[str]:
    """Yield what differs among the messages of two outputs, in their order."""
    sides = [
        [(to, message) for to, messages in side for message in messages]
        for side in (expected, actual)
    ]
    pairs = [pair for pair in zip_longest(*sides) if pair[0] != pair[1]]
    if not pairs and expected != actual:  # the same messages, in other frames
        yield f"  expected: messages to {', '.join(to for to, _ in expected)}"
        yield f"  actual: messages to {', '.join(to for to, _ in actual)}"
    if same := min(map(len, sides)) - sum(None not in pair for pair in pairs):
        yield f"  {same:,} output messages agree"
    for then, now in pairs[:SHOWN_MESSAGES]:
        for what, one, other in (("expected", then, now), ("actual", now, then)):
            yield f"  {what}: " + ("nothing" if one is None else _message(one, other))
    yield from _more(len(pairs) - SHOWN_MESSAGES)


def _message(one: tuple[str, Any], other: tuple[str, Any] | None) -> str:
    """Return a message and its receiver; beside one of the same type, the fields that differ."""
    to, message = one
    if other is None or type(message) is not type(other[1]) or message == other[1]:
        return f"to {to}: {_cut(repr(message))}"
    beside = msgspec.structs.asdict(other[1])
    fields = ", ".join(
        f"{name}={_cut(repr(value))}"
        for name, value in msgspec.structs.asdict(message).items()
        if value != beside[name]
    )
    return f"to {to}: {type(message).__name__} with {fields}"


def _more(count: int) -> Sequence[str]:
    return [f"    and {count:,} more"] if count > 0 else []


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}... ({len(text):,} characters)"
