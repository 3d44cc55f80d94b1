"""The command line: all commands, and where it begins.

Heavy modules (matplotlib, the scenarios themselves) are imported by the
commands that need them, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

# In the order of the help: a command is there once its module is.
from raytwin.scenarios.cli.commands import (
    figure_commands,
    measure_commands,
    script_commands,
    shell_commands,
)
from raytwin.scenarios.cli.commands.line import app

__all__ = [
    "app", "figure_commands", "main", "measure_commands", "script_commands", "shell_commands",
]  # fmt: skip


@app.callback(invoke_without_command=True)
def front(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Run a distributed program for real, predict it in simulation, and set both beside the paper.

    `raytwin reproduce --quick` runs every figure and ends with a report to open in a browser.
    """
    if version:
        from raytwin.scenarios.core.measured_host import raytwin_version

        print(f"raytwin {raytwin_version()}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> NoReturn:
    """Run the command line and exit."""
    app(prog_name="raytwin")
    raise AssertionError("the command line always exits")
