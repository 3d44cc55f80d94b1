"""What all commands share: the application, its exit codes, options, and how it says things.

Exit codes: 0 all is well; 1 it ran, and a check failed or a scenario broke;
2 the user asked for something that cannot be, and one line says what can;
130 interrupted, 143 terminated (SIGTERM). Results go to stdout, progress and complaints to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from raytwin.runtime.api.options.checks import INTEGER_MAX
from raytwin.scenarios.core.scenario import UsageError, did_you_mean, parse_number

if TYPE_CHECKING:
    from rich.console import Console

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a command that was terminated, as shells have it."""
NODES_MAX = 100_000
RESULTS = Path("results")

Seed = Annotated[
    int,
    typer.Option("--seed", min=0, max=INTEGER_MAX, metavar="S", help="Seed of all randomness."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are written.")]

# typer brings its own copy of click or uses the installed one: either way this is its base
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Terminated(KeyboardInterrupt):
    """The process was sent SIGTERM: what cleans up after Ctrl-C cleans up after it, too."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Have the first SIGTERM raise `Terminated` in the main thread; later ones are ignored.

    `timeout` sends two: the second must not interrupt the cleaning up. Nothing changes on
    another thread than the main one, or where SIGTERM already means something else.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    raised = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            # The handler stays: a simulation compares it to tell the driver's from a worker's.
            raised = True
            raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class OneLine(TyperGroup):
    """A command group that says whatever goes wrong in one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt is an exit of its own.

        What is kept of what was done the command says in a note of the exception.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            terminated = isinstance(error, Terminated)
            notes = getattr(error, "__notes__", [])
            say("; ".join(["terminated" if terminated else "interrupted", *notes]))
            raise typer.Exit(TERMINATED if terminated else 130) from None

    def _named(self, words: Sequence[str]) -> str:
        """Return the command among words that were typed: the parser's complaints do not say."""
        command = next((word for word in words if word in self.commands), "")
        return f"raytwin {command}".rstrip()

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> Any:
        """Run, and leave with the right exit code."""
        words = sys.argv[1:] if args is None else args
        from raytwin.scenarios.core.results import ResultError

        standalone = extra.pop("standalone_mode", True)
        extra["standalone_mode"] = False
        try:
            with sigterm_raises():
                code = super().main(args, *more, **extra)
        except _ClickError as error:
            command = error.ctx.command_path if getattr(error, "ctx", None) else self._named(words)
            say(f"{_sentence(error.format_message())} (see '{command} --help')")
            code = 2
        except (UsageError, ResultError) as error:
            say(str(error))
            code = 2
        except typer.Abort:
            say("aborted")
            code = 130
        if not standalone:
            return code
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=OneLine,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def say(text: str) -> None:
    """Print one line on stderr."""
    print(f"raytwin: {' '.join(text.split())}", file=sys.stderr)


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


PIPED_WIDTH = 1_000
"""Columns of what is not printed on a terminal: another program reads a row as one line."""


def open_console() -> Console:
    """Return what tables and coloured text are printed on."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """End well: the reader, such as `head`, has all that it wants."""
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0)

    return Output(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_json(value: Any) -> None:
    """Print a value as JSON, for other programs."""
    print(json.dumps(value, indent=2))


HostsPerRack = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="On sim, machines in a rack; by default there are no racks."
    ),
]
Oversubscription = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="X",
        help="On sim, how many times the bandwidth of a full rack's machines exceeds that of its"
        " uplink: 1, the default, or more.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def writable(path: Path) -> Path:
    """Return `path` if a file can be put there. Raises UsageError."""
    from raytwin.scenarios.core import results

    if path.is_dir():
        raise UsageError(f"{path} is a directory: give the name of a file")
    probe = path.with_name(f".{path.name}.writable")
    try:
        results.write_file(probe, b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}; give a file in a directory "
            "that exists and is yours"
        ) from error
    return path


def plain(value: Any) -> str:
    """Return a number as a person reads it."""
    from raytwin.reports.numbers import show

    return show(value)


def typed(value: Any) -> str:
    """Return a setting as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def escaped(text: str) -> str:
    """Return text that has no markup in it."""
    from rich.markup import escape

    return escape(text)


# -- lists and settings ---------------------------------------------------------------


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
