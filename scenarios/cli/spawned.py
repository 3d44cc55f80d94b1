"""Processes that a script of ``raytwin exec`` starts with `multiprocessing`.

A forked one has everything of the script's. With ``spawn`` and ``forkserver`` a new
interpreter reads what is to be prepared from a pipe, and imports the script again; what
is added here is run when that is read, so that ``import ray`` finds the same there.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from raytwin.runtime.api import lifecycle

_ROOT = str(Path(__file__).absolute().parents[3])

# It brings its own way to raytwin: the search path is set after it.
_PREPARE = """
import sys
sys.path.insert(0, root)
import raytwin
from raytwin.runtime.api import lifecycle, modules
modules.install("ray")
lifecycle.OVERRIDES.update(options)
lifecycle.started_by = started_by
"""


class _Prepared:
    """Prepares the process that unpickles it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return exec, (_PREPARE, {
            "root": _ROOT, "options": self._options, "started_by": lifecycle.started_by,
        })  # fmt: skip


def install(options: dict[str, Any]) -> None:
    """Have processes that are spawned from now on find raytwin as ``ray``.

    ``options`` go before those of their ``init()``.
    """
    plain: Callable[..., dict[str, Any]] = spawn.get_preparation_data

    def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**plain(*args, **kwargs), "raytwin": _Prepared(options)}

    spawn.get_preparation_data = get_preparation_data
