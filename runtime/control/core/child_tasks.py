"""What one task has submitted, in order: what ends with it if it is cancelled.

Both who runs it and its node keep this, the node from `SubmitTasks.parent`: a worker that
is killed can name its children no more. What ran on that worker before it has children of
its own, which go on; so a client sends no batch that two tasks have submitted together.

Of what is gone nothing is kept: it is looked for each time that twice as much has gathered.
"""

from __future__ import annotations

from collections.abc import Callable

KEPT_MAX = 1024
"""Arrays that are kept without looking for what is gone."""


class Children:
    """The arrays that the task which runs in one place has submitted."""

    __slots__ = ("_max", "arrays", "parent")

    def __init__(self) -> None:
        self.parent = b""
        """That task's ID; of what stands for it where its children belong to another job."""
        self.arrays: dict[bytes, None] = {}
        """Each once, in the order in which they were begun."""
        self._max = KEPT_MAX

    def begin(self, parent: bytes) -> None:
        """From here on it is `parent` that submits, maybe once more."""
        self.parent = parent
        self.arrays = {}
        self._max = KEPT_MAX

    def add(self, array: bytes, is_there: Callable[[bytes], bool]) -> None:
        """It has submitted an array, or a part of one; `is_there` says which ones to keep."""
        self.arrays[array] = None
        if len(self.arrays) > self._max:
            # Who submits says so before it knows what it has submitted.
            self.arrays = {kept: None for kept in self.arrays if kept == array or is_there(kept)}
            self._max = max(KEPT_MAX, 2 * len(self.arrays))
