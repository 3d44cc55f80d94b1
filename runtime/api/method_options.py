"""The options of an actor's method: what ``@method(...)`` and its ``.options`` take."""

from __future__ import annotations

from typing import Any

from runtime.api.options import exception_classes

NAMES = ("num_returns", "name", "max_task_retries", "retry_exceptions")

ONLY_RAYS = {
    "concurrency_group": "a class has one max_concurrency for all of its methods",
    "enable_task_events": "there are no task events to turn off",
    "tensor_transport": "values go through the object store",
    "_generator_backpressure_num_objects": "a stream is not held back",
    "_num_objects_per_yield": "a yield makes one object",
}
"""Options of Ray that raytwin does not have, and what to know instead."""


def check_names(options: dict[str, Any]) -> None:
    """Raise ValueError for unknown options, TypeError for a wrong ``retry_exceptions``."""
    for name in options:
        if name in ONLY_RAYS:
            raise ValueError(
                f"raytwin does not have Ray's method option {name!r}: {ONLY_RAYS[name]}"
                " (docs/api.md, Options of an actor)"
            )
        if name not in NAMES:
            raise ValueError(f"raytwin has no method option {name!r}: there are {', '.join(NAMES)}")
    exception_classes(options.get("retry_exceptions", False))
