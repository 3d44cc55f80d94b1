"""Options that several commands have, and how lists and settings are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raytwin.runtime.api.options.checks import INTEGER_MAX
from raytwin.scenarios.core.scenario import UsageError, did_you_mean, parse_number

NODES_MAX = 100_000
RESULTS = Path("results")

Seed = Annotated[
    int,
    typer.Option("--seed", min=0, max=INTEGER_MAX, metavar="S", help="Seed of all randomness."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are written.")]


def parse_nodes(text: str | None) -> tuple[int, ...] | None:
    """Return the sizes in ``10`` or ``1,2,4``. Raises UsageError."""
    if text is None:
        return None
    sizes = [parse_number(part.strip(), int) for part in text.split(",")]
    for part, size in zip(text.split(","), sizes, strict=True):
        if size is None or not 1 <= size <= NODES_MAX:
            raise UsageError(
                f"--nodes {part.strip()!r} is no cluster size: give a whole number from 1 to "
                f"{NODES_MAX}, or several with commas between, as in --nodes 1,2,4"
            )
    return tuple(dict.fromkeys(sizes))


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` pairs as a dict. Raises UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(
                f"--set {text!r} is no setting: give name=value, as in --set tasks=1000"
            )
        pairs[key.strip()] = value
    return pairs


def parse_names(text: str | None, known: Sequence[str], what: str) -> list[str] | None:
    """Return the names in a list with commas. Raises UsageError for an unknown one."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"no {what} {name!r}: {did_you_mean(name, known)}")
    return list(dict.fromkeys(names))
