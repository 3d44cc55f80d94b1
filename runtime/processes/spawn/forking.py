"""The zygote's preparation of its memory before a fork, and a forked process's first steps."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from importlib import import_module

from raytwin.runtime.execution.user_errors import exit_code
from raytwin.runtime.processes.net.heap_trim import trim

MAINS = {
    "head": "raytwin.runtime.processes.head.head_process",
    "node": "raytwin.runtime.processes.node.node_process",
    "replica": "raytwin.runtime.processes.head.replica_process",
    "worker": "raytwin.runtime.processes.client.worker_process",
}
_FD_END = (1 << 31) - 1
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def load(*modules: str) -> None:
    """Load modules for the processes to fork; the caller has to call `settle` next."""
    gc.disable()
    for module in modules:
        import_module(module)


def settle() -> None:
    """Prepare this process's memory for being shared with the processes that it forks."""
    gc.collect()
    gc.enable()  # `load` disables it, since it slows imports down
    # Shared pages stay shared: the collector does not write to old objects.
    gc.freeze()
    trim()  # or every process would have the free heap pages that imports leave


def call_process(name: str) -> None:
    """Give this process a name; the system keeps 15 bytes of it."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def adopt() -> None:
    """Become the parent of all orphans among this process's descendants."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that has forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent died before the line above


def become(kind: str, key: str, payload: bytes, fds: list[int], zygote_pid: int) -> None:
    """Run the requested kind of process in a freshly forked one; never returns."""
    code = 1
    try:
        end_with(zygote_pid)
        call_process(f"rt-{key}")
        # By ranges: the zygote has a descriptor for every process that it has forked.
        after = 3
        for fd in sorted(fds):
            os.closerange(after, fd)
            after = fd + 1
        os.closerange(after, _FD_END)
        import_module(MAINS[kind]).main(payload, fds)
        code = 0
    except SystemExit as leaving:
        code = exit_code(leaving)
        if leaving.code is not None and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)  # as Python does
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
