"""What all commands share: the application, its exit codes, and how it says things.

Exit codes: 0 all is well; 1 it ran, and a check failed or a scenario broke;
2 the user asked for something that cannot be, and one line says what can;
130 interrupted, 143 terminated (SIGTERM). Results go to stdout, progress and complaints to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from raytwin.scenarios.cli.cli_signals import TERMINATED, Terminated, sigterm_raises
from raytwin.scenarios.core.scenario import UsageError

if TYPE_CHECKING:
    from rich.console import Console

# typer brings its own copy of click or uses the installed one: either way this is its base
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


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

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and leave with the right exit code."""
        from raytwin.scenarios.core.results import ResultError

        standalone = extra.pop("standalone_mode", True)
        extra["standalone_mode"] = False
        try:
            with sigterm_raises():
                code = super().main(*args, **extra)
        except _ClickError as error:
            say(f"{_sentence(error.format_message())} (see 'raytwin --help')")
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


def open_console() -> Console:
    """Return what tables and coloured text are printed on."""
    from rich.console import Console

    return Console(highlight=False)


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
