"""Interrupting the running task of a worker process: KeyboardInterrupt, by SIGINT.

Only a signal ends a `time.sleep` or a read at once. Its handler runs in the main
thread, which runs the tasks, between any two bytecodes. The handler raises only where that
does no harm: in user code, or in code that user code has called, and never within the
runtime's own code, nor in an error's methods that the runtime calls to report it. A signal at
another moment has no effect, so `LocalWorld` repeats it until the handler has reset
`Executor.interrupt`. A task that waits in `get` needs no signal: see `Session.interrupt_here`.
"""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

from raytwin.runtime.api import tasks
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution import call_execution, task_execution
from raytwin.runtime.execution.call_execution import Reporter
from raytwin.runtime.processes.client.local_world import LocalWorld
from raytwin.runtime.session.session import Session

_RUNTIME = str(Path(__file__).absolute().parents[2])
_EXECUTION = {task_execution.__file__, call_execution.__file__}
_LIBRARY = {str(Path(_RUNTIME, "api", "util", "pool.py"))}
"""Files of the runtime that run as tasks, like a program's own."""
_HARMLESS = {
    function.__code__
    for function in (
        tasks.sleep, tasks.compute, Session.sleep, LocalWorld.sleep,
        LocalWorld.compute,
    )
}  # fmt: skip
"""Functions of the runtime that an error may leave at any point."""


_executor: Executor | None = None
"""The executor of this process, if it runs tasks."""


def catch() -> None:
    """Handle SIGINT in this process and in its children; no effect in those that run no task.
    The zygote calls this once for all workers."""
    signal.signal(signal.SIGINT, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    executor = _executor
    if executor is not None and executor.interrupt and _in_user_code(frame):
        executor.interrupt = False
        raise KeyboardInterrupt


def install(executor: Executor) -> None:
    """Interrupt the tasks of this executor; the main thread calls this."""
    global _executor
    _executor = executor


def _in_user_code(frame: FrameType | None) -> bool:
    """Whether no frame between this one and the loop that runs tasks is the runtime's."""
    top = frame
    while frame is not None:
        path = frame.f_code.co_filename
        if path in _EXECUTION:
            # These files themselves, and the reporter, are not the task's own code.
            return frame is not top and not isinstance(frame.f_locals.get("self"), Reporter)
        inside = path.startswith(_RUNTIME) and path not in _LIBRARY
        if inside and frame.f_code not in _HARMLESS:
            return False
        frame = frame.f_back
    return False
