"""``raytwin`` as `test_pages_run` runs it: the same command line, with less behind it.

What no further option makes shorter is shorter here: `raytwin reproduce` knows one figure, rounds
of `raytwin bench` are short, `raytwin whatif` measures once, and a calibration has one round of
loads and two of fitting.

    python -m tests.short_commands COMMAND [ARGUMENT...]
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from raytwin.scenarios.bench import run
from raytwin.scenarios.cli.main import main
from raytwin.scenarios.measure import registry

FIGURE = "fig11b"
MEASURE = "--measure"


def shorten(arguments: list[str]) -> None:
    """Take away what makes a command long."""
    if arguments[:1] == ["reproduce"]:
        found = registry.scenarios()[FIGURE]
        registry.scenarios = lambda: {FIGURE: replace(found, backends=("sim",))}  # type: ignore[assignment]
    if arguments[:1] == ["bench"]:
        run.Effort = partial(run.Effort, round_s=0.1, warm_up_s=0)  # type: ignore[misc,assignment]
    if arguments[:1] == ["whatif"] and MEASURE in arguments:
        arguments[arguments.index(MEASURE) + 1] = "1"
    if arguments[:1] == ["calibrate"] or "sim,local" in arguments or "fig14b" in arguments:
        from raytwin.scenarios.measure import calibrate, fit  # slow to import

        calibrate.ROUNDS, fit.ITERATIONS = 1, 2


if __name__ == "__main__":
    import sys

    shorten(arguments := sys.argv[1:])
    sys.argv[1:] = arguments
    main()
