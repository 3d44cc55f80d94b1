"""``runtime_env.RuntimeEnv``: the environment of a task or job, which its constructor checks."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.modules import missing_names
from raytwin.runtime.api.options.task_options import env_vars as checked

__getattr__ = missing_names("runtime_env")


class RuntimeEnv(dict[str, Any]):
    """A ``runtime_env`` as a dictionary. Raises ValueError for all but ``env_vars``."""

    def __init__(self, *, env_vars: dict[str, str] | None = None, **others: Any) -> None:
        given = {**others, **({} if env_vars is None else {"env_vars": env_vars})}
        checked(given)
        super().__init__(given)

    def env_vars(self) -> dict[str, str]:
        """Return the environment variables."""
        return dict(self.get("env_vars", {}))
