"""Microbenchmarks: raytwin beside its peers, on one machine in one run.

Method
------
Every engine (raytwin itself is called ``ours``) has a driver process of its own,
a *side*, which starts a cluster of two CPUs and is then told round by round what
to measure. A round of a case is taken on ours, then on each peer, and so on in
turn: whatever else the machine does falls on all of them. A case's figures are
the medians over its rounds; its ratio is the **median of the ratios of single
rounds**, and above 1 it is better for us, whatever the unit.

- `start_up`, `idle_memory` and `first_put_800mb` are measured first, each round in a fresh process
  with nothing else of the benchmark alive. Everybody is started once before that:
  files are then in the page cache, and modules compiled, as if installed.
- Then the sides live next to each other, and only one of them is working at any
  time. An idle cluster is not free, but stopping it would be worse: woken up, it
  catches up on the heartbeats and health checks that it has missed, inside the
  next round. Ray's idle daemons use about a twentieth of a core and ours less than
  a hundredth, so what is left of this distorts the ratio against us.
- Each round also measures a *limit*: what the machine does without any runtime,
  such as round trips between two processes or copies of memory (`limits`).

The cases are in `cases`, the engines in `engines`, both ends of the conversation
with a side in `side` and `conversation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytwin.scenarios.bench.conversation import BenchError
    from raytwin.scenarios.bench.run import FULL, Effort, run_bench

__all__ = ["FULL", "BenchError", "Effort", "run_bench"]


def __getattr__(name: str) -> Any:
    """Load the benchmark's own end when it is asked for: a side, measured, has none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from raytwin.scenarios.bench import conversation, run

    return getattr(conversation if name == "BenchError" else run, name)
