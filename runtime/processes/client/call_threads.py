"""The threads of an actor that runs several calls at a time.

They live as long as the actor's process: a later call may find the values that an earlier one
has put into a `threading.local`, and no call pays for a new thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class CallThreads:
    """A pool of threads; a thread is made when none is free."""

    def __init__(self) -> None:
        self._runs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Free threads, minus the functions that wait for one."""

    def run(self, run: Callable[[], None], most: int) -> None:
        """Have a thread call `run`, which must not raise; makes at most `most` threads.

        `CallThread.serve` handles the errors of an actor's calls itself.
        """
        with self._lock:
            self._free -= 1
            if self._free < 0 and self._threads < most:
                threading.Thread(target=self._serve, name="raytwin-call", daemon=True).start()
                self._threads += 1
                self._free += 1
        self._runs.put(run)

    def _serve(self) -> None:
        while True:
            self._runs.get()()
            with self._lock:
                self._free += 1
