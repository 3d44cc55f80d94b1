"""Allreduce on ranks of MPI, on the vectors of `ring_allreduce`; `mpi` runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from raytwin.scenarios.workloads.ring_allreduce import ITEM_BYTES, WARM_UPS, numbers, sums


def main(comm: Any, sizes_bytes: list[int], iterations: int) -> list[dict[str, Any]]:
    """Return for each size, and each iteration after `WARM_UPS` that are not counted, the seconds
    that the slowest rank took, and whether all ranks have the sum."""
    found = []
    for nbytes in sizes_bytes:
        count = nbytes // ITEM_BYTES
        own = numbers(comm.rank, count)
        result = np.zeros_like(own)
        for iteration in range(WARM_UPS + iterations):
            result[:] = 0
            comm.Barrier()
            begun_s = MPI.Wtime()
            comm.Allreduce(own, result)
            elapsed_s = comm.allreduce(MPI.Wtime() - begun_s, MPI.MAX)
            wrong = int(not np.array_equal(result, sums(comm.size, count)))
            right = not comm.allreduce(wrong)
            if iteration >= WARM_UPS:
                found.append({"bytes": nbytes, "elapsed_s": elapsed_s, "right": right})
    return found
