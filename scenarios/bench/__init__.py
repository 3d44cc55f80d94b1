"""Microbenchmarks: raytwin beside its peers, on one machine in one run.

Method
------
Every engine (raytwin itself is called ``ours``) has a driver process of its own,
a *side*, which starts a cluster of two CPUs and is then asked round by round
what to measure. A round of a case is taken on ours, then on each peer, and so on in
turn: whatever else the machine does falls on all of them. A case's figures are
the medians over its rounds; its ratio is the **median of the ratios of single
rounds**, and above 1 it is better for us, whatever the unit.

- Figures of whole clusters, such as `start_up`, are measured first, each round in a fresh
  process with nothing else of the benchmark alive. Every side is started once before that:
  files are then in the page cache, and modules compiled, as if installed.
- Then the sides live next to each other, and only one of them is working at any
  time. An idle cluster is not free, but stopping it would be worse: woken up, it
  catches up on the heartbeats and health checks that it has missed, inside the
  next round. Ray's idle daemons use about a twentieth of a core and ours less than
  a hundredth, so what is left of this distorts the ratio against us.

`cases` are measured on `engines`. `side` is the program of a side, `conversation` the
benchmark's end of the pipe to it, and `run` takes the rounds. A side imports neither of
these two: it is measured.
"""

from __future__ import annotations
