"""The parameters of actions: which values are valid, how an editor checks them, what steps keep."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from raytwin.runtime.control import messages
from raytwin.simulator.machine.frame_faults import ANY_KIND

ENDPOINT = r"(head|node:[0-9]{1,9}|replica:[0-9]{1,9}\.[0-9]{1,9})"
"""The form of a link's end."""


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    return is_number(value) and value >= 0


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


@dataclass(frozen=True)
class Parameter:
    """One parameter of an action."""

    form: str
    """The form of a valid value, for errors and for editors."""
    schema: Mapping[str, Any]
    """The JSON schema of the values."""
    valid: Callable[[Any], bool]
    convert: Callable[[Any], Any]
    """Returns the value that a step keeps, which `valid` accepts as well."""
    required: bool = True
    choices: Sequence[str] = ()
    """The values, where they are texts that one may misspell."""


def _is_resources(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and all(isinstance(name, str) for name in value)
        and all(map(is_amount, value.values()))
    )


def _is_sets(value: Any) -> bool:
    """Whether a value is two or more lists of endpoints, of which none is in two lists."""
    if not isinstance(value, list | tuple) or len(value) < 2:
        return False
    if not all(isinstance(part, list | tuple) and part for part in value):
        return False
    ends = [end for part in value for end in part]
    right = all(isinstance(end, str) and re.fullmatch(ENDPOINT, end) for end in ends)
    return right and len(set(ends)) == len(ends)


RESOURCES = Parameter(
    'amounts by name, such as {"CPU": 2}',
    {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
    _is_resources,
    lambda value: {name: float(amount) for name, amount in value.items()},
    required=False,
)
SETS = Parameter(
    'two or more lists of endpoints, none of them twice, such as [["head", "node:0"], ["node:1"]]',
    {
        "type": "array",
        "minItems": 2,
        "items": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": "string", "pattern": f"^{ENDPOINT}$"},
        },
    },
    _is_sets,
    lambda value: tuple(tuple(part) for part in value),
)
ONE_WAY = Parameter(
    "true or false",
    {"type": "boolean"},
    lambda value: isinstance(value, bool),
    bool,
    required=False,
)
RESET_KIND = Parameter(
    "rst or fin",
    {"enum": ["rst", "fin"]},
    lambda value: value in ("rst", "fin"),
    str,
    required=False,
)
PROBABILITY = Parameter(
    "a number from 0 to 1",
    {"type": "number", "minimum": 0, "maximum": 1},
    lambda value: is_amount(value) and value <= 1,
    float,
)
LOSS = Parameter(
    "a number above 0 and below 1",
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    lambda value: is_amount(value) and 0 < value < 1,
    float,
)
KINDS = (
    ANY_KIND,
    *sorted(
        name
        for name, found in vars(messages).items()
        if isinstance(found, type)
        and issubclass(found, Struct)
        and found.__struct_config__.tag is not None
    ),
)
"""The classes of the control plane's messages."""
KIND = Parameter(
    f"the class of a control-plane message, such as Heartbeat, or {ANY_KIND}",
    {"type": "string"},  # without the names, or every new message would change the schema's file
    lambda value: isinstance(value, str) and value in KINDS,
    str,
    choices=KINDS,
)
FACTOR = Parameter(
    "a number above 0",
    {"type": "number", "exclusiveMinimum": 0},
    lambda value: is_amount(value) and value > 0,
    float,
)
SKEW = Parameter("milliseconds, a number", {"type": "number"}, is_number, float)
SEED = Parameter(
    "an integer of at least 0",
    {"type": "integer", "minimum": 0},
    lambda value: is_amount(value) and value == int(value),
    int,
    required=False,
)
MILLISECONDS = Parameter(
    "milliseconds, a number of at least 0", {"type": "number", "minimum": 0}, is_amount, float
)
NBYTES = Parameter("bytes, an integer of at least 0", SEED.schema, SEED.valid, int)
