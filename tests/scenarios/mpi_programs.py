"""What ranks run in tests of the peer MPI."""

from __future__ import annotations

import time
from typing import Any


def main(comm: Any, do: str = "sum", on: int = 0) -> Any:
    """Add up the ranks, or do on one of them what ends a job badly."""
    if comm.rank == on and do == "raise":
        raise ValueError("no\nsuch weights")
    if do == "hang":
        time.sleep(600)
    return {"ranks": comm.size, "sum": comm.allreduce(comm.rank)}
