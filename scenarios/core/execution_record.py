"""A task or call writes down that it has begun; `executions` reads the record.

Each new worker imports the modules of the bodies that it runs, and its first task waits for that.
So this one imports nothing else.
"""

from __future__ import annotations

import raytwin as ray


def begin(path: str) -> None:
    """Write down that the calling task or call has begun."""
    context = ray.get_runtime_context()
    line = f"{context.get_task_id()} {context.get_worker_id()} {ray.now()!r}\n"
    # One write to the end of the file: lines of several processes do not mix.
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode())
