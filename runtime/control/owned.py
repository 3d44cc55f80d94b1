"""What a node knows of the arrays that its clients own, besides whose they are (`owners`).

From an array's submission or put until its owner lets go of it (`letting_go`), or is lost
with it (`inheritance`)::

    SubmitTasks ──> so far it was submitted, in order (`ends`)
                ──> it is an actor that ends with its owner (`actors`)
    RefUpdates, a value with it inside ──> others have, or had, references (`lent`)

Of most arrays there is nothing here: one task is submitted at once, and lent to nobody.
"""

from __future__ import annotations

from runtime.control.objects import ObjectDirectory
from runtime.control.ranges import Ranges
from runtime.control.task_log import TaskLog


class Owned:
    """Arrays that clients of one node own."""

    def __init__(self, objects: ObjectDirectory, log: TaskLog) -> None:
        self._objects = objects
        self._log = log
        self.actors: set[bytes] = set()
        """Actors that are not detached."""
        self.lent: set[bytes] = set()
        """Arrays that clients here own and of which others have, or had, references."""
        self.ends: dict[bytes, int] = {}
        """Of arrays of several elements: the end of what was submitted, in order."""

    def missing(self, array: bytes) -> list[tuple[int, int]]:
        """Return (start, count) of what was submitted of it and has not ended, as far as is
        known here."""
        made = Ranges()
        for result in self._objects.results_of(array):
            made.add(result.start, result.count)
        return made.missing(0, self.ends.get(array, 1))

    def is_made(self, array: bytes) -> bool:
        """Whether all that was submitted of an array has ended, as far as is known here."""
        return not self.missing(array)

    def lend(self, array: bytes) -> None:
        """A reference of it is somewhere else: the GCS has to know of it."""
        if array in self._objects.owners:
            self.lent.add(array)
            self._log.expose(array)
