"""The threads of an actor that runs several calls at a time.

They live as long as its process: what a call has put into a `threading.local` a later one may
find, and no call pays for a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class CallThreads:
    """Threads that run what they are given, each made when none of those before is free."""

    def __init__(self) -> None:
        self._runs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads without anything to run, less what waits for one."""

    def run(self, run: Callable[[], None], most: int) -> None:
        """Have a thread run something, which must not raise; there are at most so many.

        An actor's see to that themselves: see `CallThread.serve`.
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
