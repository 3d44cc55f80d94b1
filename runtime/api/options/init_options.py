"""Checks the options of `init` before it starts a process.

`checks` has the types of numbers and strings; the backend checks whether a cluster can be made
with them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

_PATHS = frozenset({"gcs_storage", "journal", "object_spilling_dir", "profile", "recording"})
_ONLY = {
    "profile": "sim",
    "nodes_per_host": "sim",
    "cores_per_host": "sim",
    "host_speeds": "sim",
    "hosts_per_rack": "sim",
    "oversubscription": "sim",
    "cost": "sim",
    "recording": "sim",
    "object_spilling_dir": "local",
    "image": "docker",
    "shared_directories": "docker",
    "container_cpus": "docker",
    "container_memory_bytes": "docker",
    "container_disk_bytes": "docker",
}
"""Options that only one backend has."""


def names_of(*takers: Callable[..., Any]) -> list[str]:
    """Return the options of several functions: their keyword-only parameters."""
    parameters = [each for taker in takers for each in inspect.signature(taker).parameters.values()]
    return [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]


def check_names(backend: str, options: Mapping[str, Any], *takers: Callable[..., Any]) -> None:
    """Raise TypeError for an option that none of a backend's functions takes."""
    known = names_of(*takers)
    for name in options:
        if name in known:
            continue
        if name in _ONLY:
            raise TypeError(f"{name} is an option of backend={_ONLY[name]!r}, not of {backend!r}")
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "docs/api.md lists what there is"
        raise TypeError(f"init() has no option {name!r}: {hint}")


def check_directory(what: str, directory: str | os.PathLike[str], make: bool = False) -> None:
    """Raise ValueError unless a file can be made in the directory, whatever its mode.

    With `make`, creates a missing directory.
    """
    import tempfile

    try:
        if make:
            os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return
    except OSError as error:
        raise ValueError(
            f"{what}: {directory} is not a directory to write to ({error.strerror})"
        ) from None


def check_file(what: str, path: str | os.PathLike[str]) -> None:
    """Raise ValueError unless the file can be written; create a missing one."""
    try:
        with open(path, "ab"):
            return
    except OSError as error:
        raise ValueError(
            f"{what}: {os.fspath(path)} is not a file to write to ({error.strerror})"
        ) from None


def check_values(options: Mapping[str, Any]) -> None:
    """Raise TypeError for a path of the wrong type, ValueError for contradicting options."""
    for name in _PATHS & options.keys():
        value = options[name]
        if value is not None and not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"{name} is a path, not {value!r}")
    cpus = [options[name] for name in ("cpus_per_node", "num_cpus") if name in options]
    given = [each for each in cpus if each is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise ValueError(
            f"cpus_per_node={given[0]!r} and num_cpus={given[1]!r}: they are two names for one"
            " thing"
        )
