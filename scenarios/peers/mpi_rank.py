"""A rank of an MPI job: ``python -m raytwin.scenarios.peers.mpi_rank MODULE ARGUMENTS RESULT``.

See `mpi`, which starts it. A rank whose ``main`` raises says so in one line and ends the job.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from mpi4py import MPI

from raytwin.scenarios.peers.mpi import SAID


def main() -> None:
    """Run the module's ``main`` on this rank; on rank 0 write what it returns."""
    module, arguments, result = sys.argv[1:]
    comm = MPI.COMM_WORLD
    try:
        value = importlib.import_module(module).main(comm, **json.loads(arguments))
        if comm.rank == 0:
            Path(result).write_text(json.dumps(value))
    except Exception as error:
        traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{SAID}rank {comm.rank}: {what}", file=sys.stderr, flush=True)
        comm.Abort(1)


if __name__ == "__main__":
    main()
