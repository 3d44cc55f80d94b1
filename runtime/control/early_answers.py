"""Answers of an actor that is being rebuilt, before it takes calls again.

A call that is repeated may need a value that was lost, and is made again by a task that runs
once more. That task makes its calls of the actor again, which took effect before and whose
answers it waits for: it would wait for the actor, and the actor for it. So its node is asked
for them as soon as it has what the actor is rebuilt from::

    GCS ──ActorChanged, STARTING──> who waits ──ActorCalls.early──> the actor's node
                                        ↑                               │ repeated, or before
                                        └──────────TaskResults──────────┘ the checkpoint

What such a task has seen then took effect before what needs its value now, so it is repeated
before that. Calls that did not take effect stay where they are until the actor is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from runtime.control.call_memory import comes_once
from runtime.control.messages import ActorCalls, TaskSpec
from runtime.control.pieces import cut, task_bytes


def to_ask(calls: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return those calls that may have taken effect for an earlier run of their caller,
    without arguments.

    Of a driver's none has: its program does not run again.
    """
    return [replace(call, args=b"", deps=()) for call in calls if not comes_once(call.owner)]


def questions(actor: bytes, incarnation: int, calls: list[TaskSpec]) -> Iterator[ActorCalls]:
    """Yield the messages that ask an actor's node for these."""
    for piece in cut(calls, task_bytes):
        yield ActorCalls(actor, incarnation, [], [], early=piece)
