"""Completion in shells: the script that asks this command line. typer has it, and answers it."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer
import typer.completion

from raytwin.scenarios.cli.commands.line import app

# typer defines the functions behind its own option `--show-completion`, but does not export them in
# its types.
_typer: Any = typer.completion
_typer.completion_init()


class Shell(enum.StrEnum):
    """A shell that can ask."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")],
) -> None:
    """Print the script with which a shell completes commands, options, scenarios and plans.

    Examples, for the shell's start-up file: `eval "$(raytwin completion bash)"`;
    `eval "$(raytwin completion zsh)"`, after compinit;
    `raytwin completion fish | source`
    """
    print(
        _typer.get_completion_script(
            prog_name="raytwin", complete_var="_RAYTWIN_COMPLETE", shell=shell.value
        )
    )
