"""What `init` is given, checked before any process starts: one line says what is wrong.

Here is what holds for an option by itself, on every backend: of which kind it is. What a
value has to be for a cluster that can be made is checked where it is made.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SEED_MAX = (1 << 63) - 1

_WHOLE = frozenset(
    {
        "object_store_memory", "store_copy_threads", "fetch_streams", "gcs_replicas", "gcs_shards",
        "gcs_memory_max", "actor_log_bytes_max", "nodes_per_host", "cores_per_host",
    }
)  # fmt: skip
_PATHS = frozenset({"gcs_storage", "journal", "object_spilling_dir", "profile"})
_ONLY = {
    "profile": "sim",
    "nodes_per_host": "sim",
    "cores_per_host": "sim",
    "object_spilling_dir": "local",
}
"""Options that one backend has."""


def check_names(backend: str, start: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that a backend's `start` does not have."""
    known = list(inspect.signature(start).parameters)
    for name in options:
        if name in known:
            continue
        if name in _ONLY:
            raise TypeError(f"{name} is an option of backend={_ONLY[name]!r}, not of {backend!r}")
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "docs/api.md lists what there is"
        raise TypeError(f"init() has no option {name!r}: {hint}")


def check_values(options: Mapping[str, Any]) -> None:
    """Raise TypeError, or ValueError, for a value of the wrong kind; None is the default."""
    for name, value in options.items():
        if value is None:
            continue
        if name in _WHOLE and not _is_whole(value):
            raise TypeError(f"{name} is a whole number, not {value!r}")
        if name in _PATHS and not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"{name} is a path, not {value!r}")
        if name in ("policy", "namespace", "address") and not isinstance(value, str):
            raise TypeError(f"{name} is a string, not {value!r}")
    _check_seed(options.get("seed"))
    _check_timeout(options.get("heartbeat_timeout_s"))
    _check_nodes(options.get("nodes"))
    for name in ("cpus_per_node", "num_cpus", "num_gpus"):
        _check_amount(name, options.get(name))
    if options.get("resources") is not None:
        _check_resources("resources", options["resources"])
    cpus = {
        options[name] for name in ("cpus_per_node", "num_cpus") if options.get(name) is not None
    }
    if len(cpus) > 1:
        raise ValueError(
            f"cpus_per_node={options['cpus_per_node']!r} and num_cpus={options['num_cpus']!r}:"
            " they are two names for one thing"
        )


def _check_seed(seed: Any) -> None:
    if seed is None:
        return
    if not _is_whole(seed):
        raise TypeError(f"seed is a whole number, not {seed!r}")
    if abs(seed) > SEED_MAX:
        raise ValueError(f"seed={seed}: give a number from {-SEED_MAX} to {SEED_MAX}")


def _check_timeout(timeout_s: Any) -> None:
    if timeout_s is None:
        return
    if not _is_number(timeout_s):
        raise TypeError(f"heartbeat_timeout_s is a number of seconds, not {timeout_s!r}")
    if math.isnan(timeout_s):
        raise ValueError(f"a heartbeat timeout of {timeout_s} s")


def _check_nodes(nodes: Any) -> None:
    if nodes is None or _is_whole(nodes):
        return
    if isinstance(nodes, (str, bytes)) or not isinstance(nodes, Sequence):
        raise TypeError(f"nodes is how many there are, or a list of what each has, not {nodes!r}")
    for node in nodes:
        _check_resources("each of nodes", node)


def _check_resources(what: str, resources: Any) -> None:
    if not isinstance(resources, Mapping):
        raise TypeError(f"{what} is a dict of {{resource: amount}}, not {resources!r}")
    for name, amount in resources.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a resource is a string, not {name!r}")
        _check_amount(name, amount)


def _check_amount(name: str, amount: Any) -> None:
    if amount is not None and not _is_number(amount):
        raise TypeError(f"{name} is a number, not {amount!r}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # numpy's numbers too: amounts become floats.
    return not isinstance(value, (str, bytes, bool)) and hasattr(value, "__float__")
