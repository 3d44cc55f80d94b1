"""``raytwin exec``: run an existing script, in which `ray` is raytwin.

The script runs as ``python SCRIPT ARGS`` would run it: as ``__main__``, with its
own directory first on the path and its own arguments; what it raises looks as it
would there. Only ``import ray`` finds something else, here and in every worker,
and ``init()`` does what the command line says.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from raytwin.runtime.api import lifecycle, modules
from raytwin.scenarios.core.scenario import UsageError


def execute(script: Path, args: Sequence[str], options: dict[str, Any]) -> int:
    """Run a script; return its exit code.

    ``options`` go before those of the script's ``init()``. Raises as `run_as_main` does.
    """
    lifecycle.OVERRIDES.update(options)
    modules.install("ray")
    os.environ[modules.AS_RAY] = "1"
    return run_as_main(script, args)


def run_as_main(script: Path, args: Sequence[str]) -> int:
    """Run a script as ``python SCRIPT ARGS`` would; return its exit code.

    Raises UsageError for a script that cannot be read; SystemExit is the script's own.
    """
    try:
        with io.open_code(str(script)) as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"cannot read the script {script}: {error.strerror}") from error
    main = ModuleType("__main__")
    # Absolute, as Python has it, in tracebacks too; `sys.argv` has what was given.
    path = os.path.abspath(script)
    main.__file__ = path
    main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    # Functions and classes of ``__main__`` are sent to workers by value.
    sys.modules["__main__"] = main
    sys.argv = [str(script), *args]
    sys.path[0] = str(script.resolve().parent)
    try:
        # `dont_inherit`: or it would be compiled with this file's `annotations`.
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        here = error.__traceback__
        # Without the frame above: it is not the script's.
        error.__traceback__ = here.tb_next if here is not None else None
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.stdout.flush()
    return 0
