"""A Ray of the tests' own, whatever Ray somebody else runs on the machine.

``ray.init(num_cpus=...)`` joins a Ray that it finds, by ``RAY_ADDRESS`` or by what a running one
has written into Ray's usual folder, and then refuses `num_cpus`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

# Ray's sockets are deep below it, and a socket's path has at most 107 bytes.
SHORT = "/tmp"
LEAVE_TIMEOUT_S = 10.0


@contextmanager
def ray_folder() -> Iterator[Path]:
    """Make a folder for one Ray after the other and remove it, with what still writes to it.

    Workers that were being started when their driver was killed look for it for half a minute.
    """
    folder = Path(tempfile.mkdtemp(prefix="rtr-", dir=SHORT))
    try:
        yield folder
    finally:
        left = [process for process in psutil.process_iter() if names(process, str(folder))]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=LEAVE_TIMEOUT_S)
        shutil.rmtree(folder)


def names(process: psutil.Process, folder: str) -> bool:
    """Whether the command line of a process names a folder."""
    try:
        return any(folder in argument for argument in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@contextmanager
def own_ray(cpus: int, folder: Path, **options: Any) -> Iterator[Any]:
    """Start a Ray on one node with so many CPUs in this process; yield the module `ray`."""
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
        **options,
    )
    try:
        yield ray
    finally:
        ray.shutdown()
