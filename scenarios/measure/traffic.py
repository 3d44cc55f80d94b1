"""Turns and frames of nodes and the head, counted from their journals.

Real processes and the simulation write the same journals, so one function counts both. A frame
counts where it crosses from one process to another. Drivers and workers keep no journals on real
processes: they count as the other end of frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from raytwin.runtime.control.core.addresses import HEAD
from raytwin.runtime.journal import JournalReader

NODE = "node"
_PROCESSES_OF_THEIR_OWN = ("driver", "worker", "replica")


def traffic(journals: Iterable[Path], since_s: float) -> Counter[str]:
    """Return the turns and frames from a moment on: ``node turns``, ``driver to node``, ...

    `since_s` is by the clock of the journals. Raises JournalError for a file that is none.
    """
    found: Counter[str] = Counter()
    for path in journals:
        for turn in JournalReader(path):
            process = _process(turn.component)
            role = _role(process)
            if turn.now_s < since_s or role not in (NODE, HEAD):
                continue
            found[f"{role} turns"] += 1
            for source, _ in turn.inputs:
                if _process(source) != process:
                    found[f"{_role(_process(source))} to {role}"] += 1
            for destination, _ in turn.outputs:
                receiver = _role(_process(destination))
                # Frames between nodes and the head count where they arrive.
                if receiver not in (NODE, HEAD):
                    found[f"{role} to {receiver}"] += 1
    return found


def _process(address: str) -> str:
    """Return the process of a component.

    >>> _process("store:3"), _process("worker:3.1"), _process("gcs.1")
    ('node:3', 'worker:3.1', 'head')
    """
    kind, _, rest = address.partition(":")
    if not rest:
        return HEAD
    return address if kind in _PROCESSES_OF_THEIR_OWN else f"{NODE}:{rest}"


def _role(process: str) -> str:
    return process.partition(":")[0]
