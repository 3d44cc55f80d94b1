"""The options of an actor's method: what ``@method(...)`` and its ``.options`` take."""

from __future__ import annotations

from typing import Any

from runtime.api.checks import integer, text
from runtime.api.options import EVER, exception_classes, returns
from runtime.control.ids import RETURNS_MAX

NAMES = ("num_returns", "name", "max_task_retries", "retry_exceptions")

ONLY_RAYS = {
    "concurrency_group": "a class has one max_concurrency for all of its methods",
    "enable_task_events": "there are no task events to turn off",
    "tensor_transport": "values go through the object store",
    "_generator_backpressure_num_objects": "a stream is not held back",
    "_num_objects_per_yield": "a yield makes one object",
}
"""Options of Ray that raytwin does not have, and what to know instead."""


STREAMING = "streaming"


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return options as they may travel; None means that it was not given.

    Raises ValueError for an unknown name or an impossible value, TypeError
    for a value of the wrong type.
    """
    for name in given:
        if name in ONLY_RAYS:
            raise ValueError(
                f"raytwin does not have Ray's method option {name!r}: {ONLY_RAYS[name]}"
                " (docs/api.md, Options of an actor)"
            )
        if name not in NAMES:
            raise ValueError(f"raytwin has no method option {name!r}: there are {', '.join(NAMES)}")
    options = {name: value for name, value in given.items() if value is not None}
    if "num_returns" in options:
        options["num_returns"] = _returns(options["num_returns"])
    if "name" in options:
        options["name"] = text("name", options["name"])
    if "max_task_retries" in options:
        name = "max_task_retries"
        options[name] = integer(name, options[name], -1, note=EVER)
    if "retry_exceptions" in options:
        options["retry_exceptions"] = exception_classes(options["retry_exceptions"])
    return options


def _returns(given: Any) -> int | str:
    if not isinstance(given, str):
        return returns(given)
    if given != STREAMING:
        raise ValueError(f"num_returns is 0 to {RETURNS_MAX} or {STREAMING!r}, not {given!r}")
    return STREAMING
