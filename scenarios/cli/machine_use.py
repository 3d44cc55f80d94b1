"""``raytwin exec --usage`` on real processes: how long a script ran, and what else did meanwhile.

What else runs on a machine lengthens what is measured there, so its CPU time belongs to a
measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from raytwin.runtime.api import backend, lifecycle

_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")
"""Fields of the machine's CPU times; the time of guests is in that of users, too."""


@dataclass(frozen=True)
class MachineUse:
    """What one cluster has used of this machine, from `init()` to its end; in seconds."""

    makespan_s: float
    own_cpu_s: float
    """CPU time of the driver and of all processes of the cluster."""
    others_cpu_s: float
    """CPU time of everything else."""


def measured(run: Callable[[], int], written: Path) -> int:
    """Run a script on real processes; write what its clusters used as a JSON list; return its exit
    code.

    `run` executes the script. The clusters end where it does; without one there is no file.
    """
    uses: list[MachineUse] = []

    def begin(session: Any) -> None:
        began_s, own_s, all_s = time.monotonic(), _own_cpu_s(), _all_cpu_s()

        def end() -> None:
            makespan_s = time.monotonic() - began_s
            own_cpu_s = _own_cpu_s() - own_s
            # The two clocks tick differently: without others the difference may be below zero.
            others_cpu_s = max(0.0, _all_cpu_s() - all_s - own_cpu_s)
            uses.append(MachineUse(makespan_s, own_cpu_s, others_cpu_s))

        session.before_shutdown.append(end)

    backend.on_connect.append(begin)
    try:
        return run()
    finally:
        lifecycle.shutdown()
        backend.on_connect.remove(begin)
        if uses:
            written.write_bytes(msgspec.json.encode(uses))


def _own_cpu_s() -> float:
    """Return the CPU time of this process and its descendants so far, dead ones included."""
    this = psutil.Process()
    total_s = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # its parent counts it from now on
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def _all_cpu_s() -> float:
    """Return the CPU time of all processes of the machine since it was started."""
    times = psutil.cpu_times()._asdict()
    return sum(value for name, value in times.items() if name not in _NOT_BUSY)
