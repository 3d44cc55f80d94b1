"""What ranks of MPI run for table 4: simulations in rounds, one a rank, then a barrier."""

from __future__ import annotations

import time
from typing import Any

from raytwin.scenarios.workloads.simulations import WARM_UP, episodes, simulate


def main(comm: Any, draws: int, seed: int) -> dict[str, Any]:
    """Run all draws; return the seconds and the scores of each, in the order of its runs."""
    elapsed_s, scores = [], []
    for draw in (WARM_UP, *range(draws)):
        runs = episodes(comm.size, draw, seed)
        mine = []
        comm.Barrier()
        began_s = time.perf_counter()
        for run in runs[comm.rank :: comm.size]:
            mine.append(simulate(*run))
            comm.Barrier()
        gathered = comm.gather(mine)
        ended_s = time.perf_counter()
        if comm.rank == 0 and draw != WARM_UP:
            elapsed_s.append(ended_s - began_s)
            # Each round has a run of every rank.
            scores.append([score for each in zip(*gathered, strict=True) for score in each])
    return {"elapsed_s": elapsed_s, "scores": scores}
