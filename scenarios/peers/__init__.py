"""Peers: other systems that run the same workload in the same run.

Where the paper's result is a ratio between systems, a figure of raytwin's alone says nothing. So a
scenario on `local` runs its workload on the peer, too, in the same run and interleaved: raytwin,
the peer, raytwin, the peer, so that what else the machine does hits both alike. Each system starts
afresh for each repeat and ends before the other begins, since ranks of MPI that wait burn a core.

- Rows carry a column ``system``: ``raytwin``, ``mpi``, ``ray`` and so on. Comparisons in a report
  are between rows of one run.
- Each peer is a module here, with a function ``missing()`` that returns one line which says what
  to install, or "" if the peer can run. A scenario whose peer is missing says that line through its
  `Progress` and as a finding; the rows of the peer are then missing, never made up, and so is every
  check that needs them.
- A peer that fails raises `PeerError`, one line that says why. It is no finding about the workload,
  so a scenario lets it end the run.
- A peer leaves no process and no file behind: not when it fails, nor after Ctrl-C.

What ranks of MPI run are modules here as well: see `mpi` for their shape. `simgrid_bag` compares
two simulators, and so is no part of a scenario: it runs as ``python -m``.
"""

from __future__ import annotations


class PeerError(RuntimeError):
    """A peer could not run the workload; one line says why."""
