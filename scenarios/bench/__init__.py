"""Microbenchmarks: raytwin beside its peers, or beside itself, on one machine in one run.

Method
------
Every engine (raytwin itself is called ``ours``) has a driver process of its own,
a *side*, which starts a cluster of two CPUs and is then asked what to measure. Whatever is
compared is measured in turn, so that what else the machine does falls on all of it; and each
round has sides and clusters of its own, since two clusters that are started alike differ for as
long as they live: in where the kernel puts their processes, and what lies where in memory.

- Against peers (`run`): a round of a case is taken on ours, then on each peer. A case's figures
  are the medians over its rounds; its ratio is the **median of the ratios of single
  rounds**, and above 1 it is better for us, whatever the unit. Figures of whole clusters, such
  as `start_up`, are measured first, with nothing else of the benchmark alive. Every side is
  started once before that: files are then in the page cache, and modules compiled, as if
  installed.
- Against another tree of raytwin (`gate`): short slices alternate, and rounds go on until the
  interval of the slow-down has decided.

The sides of a round live next to each other, and only one of them is working at any time. An
idle cluster is not free, but stopping it would be worse: woken up, it catches up on the
heartbeats and health checks that it has missed, inside the next round. Ray's idle daemons use
about a twentieth of a core and ours less than a hundredth, so what is left of this distorts the
ratio against us.

Modules, the lower first. A side runs the first four, which import nothing else of raytwin's but
the engine, so that they can measure any version of it:

- `cases`, `engines`, `dask_engine`, `side`: what is measured, on what, and the program of a side.
- `trees`: which raytwin a side imports. `conversation`: the benchmark's end of the pipe to it.
- `intervals`, `decision`: what rounds say, and when there are enough; pure.
- `peers`, `run`, `gate`: take the rounds.
- `files`, `tables`: what is left of them: JSON, Markdown, history.
"""

from __future__ import annotations
