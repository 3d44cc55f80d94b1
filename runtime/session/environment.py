"""The environment variables of a task: set before it, put back after it."""

from __future__ import annotations

import os
from collections.abc import Sequence


class Environment:
    """What a worker's running task has changed of ``os.environ``."""

    def __init__(self) -> None:
        self.variables: tuple[tuple[str, str], ...] = ()
        self._before: dict[str, str | None] = {}

    def enter(self, variables: Sequence[tuple[str, str]]) -> None:
        """Set variables."""
        self.variables = tuple(variables)
        self.apply()

    def leave(self) -> None:
        """Put back what was there."""
        self.withdraw()
        self.variables = ()

    def apply(self) -> None:
        """Set the variables (again)."""
        for name, value in self.variables:
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def withdraw(self) -> None:
        """Put back what was there, for now."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
