"""The format of a recorded run, a graph of tasks and calls in one JSON file: docs/recording.md.

`raytwin record` writes it, `raytwin exec --backend sim --cost recorded` reads it. Times are in
seconds, sizes in bytes, IDs in hexadecimal. `recording.schema.json` is the schema, this module's
output, held to it by a test; `python -m raytwin.runtime.session.recording` writes it anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

FILE = Path(__file__).with_name("recording.schema.json")

Bytes = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Own = Annotated[
    list[tuple[Seconds, Seconds]],
    Meta(
        description="[CPU time, time waited] of the body itself, between its calls of get, wait and"
        " the next item of a stream: what happened inside API calls is left out."
    ),
]

Part = Annotated[
    int, Meta(ge=0, description="In which part of its parent's `own` it was submitted or put.")
]
Waits = Annotated[
    list[list[str]],
    Meta(description="IDs of the objects that the waits between its parts waited for."),
]


class Body(Struct, forbid_unknown_fields=True):
    """One execution of a task or call."""

    id: Annotated[str, Meta(description="The task's ID: the same in each run of one recording.")]
    name: Annotated[str, Meta(description="The name of its function or method.")]
    kind: Literal["task", "actor", "call"]
    """``actor``: the constructor."""
    parent: Annotated[
        str | None, Meta(description="The task or driver that has submitted it; null: not known.")
    ]
    demand: Annotated[dict[str, float], Meta(description="The resources that it needs.")]
    inputs: Annotated[list[str], Meta(description="IDs of the objects it has by reference.")]
    args_bytes: Annotated[Bytes, Meta(description="Its other arguments, serialized.")]
    result_bytes: Annotated[Bytes, Meta(description="Its values, serialized.")]
    start_s: Annotated[float, Meta(description="Since the driver's start.")]
    end_s: float
    node: Annotated[int, Meta(ge=0)]
    own: Own
    actor: Annotated[str | None, Meta(description="The actor's ID, of a call.")] = None
    part: Part = 0
    waits: Waits = []
    values: Annotated[
        list[Bytes], Meta(description="The bytes of each of its values, where that is known.")
    ] = []


class Put(Struct, forbid_unknown_fields=True):
    """One object that a program has put."""

    id: str
    parent: str | None
    nbytes: Bytes
    part: Part = 0


class Driver(Struct, forbid_unknown_fields=True):
    """The program itself."""

    id: str
    own: Own
    waits: Waits = []


class Recording(Struct, forbid_unknown_fields=True):
    """A run of one program on one cluster."""

    format: Literal["raytwin-recording"]
    version: Literal[1]
    script: str
    backend: str
    nodes: Annotated[list[dict[str, float]], Meta(description="The resources of each node.")]
    makespan_s: Seconds
    driver: Driver
    bodies: Annotated[list[Body], Meta(description="In the order of their starts.")]
    puts: list[Put] = []

    def to_json(self) -> bytes:
        """Return the content of its file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def load(path: str | os.PathLike[str]) -> Recording:
    """Return the recording in a file. Raises ValueError, in one line, if there is none."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Recording)
    except OSError as error:
        raise ValueError(f"cannot read the recording {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not a recording: {error}") from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of a recording."""
    found = msgspec.json.schema(Recording)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def text() -> str:
    """Return the content of the schema's file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
