"""The registry of scenarios: raytwin's own, those of installed packages, those in files.

raytwin's own are the modules of `figures` that have a ``SCENARIO``; the registry imports every
module there, so that a broken one raises when scenarios are listed instead of missing from the
list.

Another package names its scenarios as entry points of the group `GROUP`, each under the scenario's
own name::

    [project.entry-points."raytwin.scenarios"]
    my-scenario = "my_package.my_scenario:SCENARIO"

A file is run as a program would be: its folder is first on the module path, and its functions and
classes travel by value to workers, which need not find it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import cloudpickle

from raytwin.scenarios import figures as package
from raytwin.scenarios.core.scenario import BACKENDS, Scenario, UsageError, unknown_scenario

GROUP = "raytwin.scenarios"
"""The entry points by which other packages bring scenarios."""
ALL = "all"
"""The name for every scenario, on those of the named backends that it has."""

_FIGURE = re.compile(r"(fig|table)\d")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""Results are in a folder of the scenario's name, and the command line tells it from a file."""


@functools.cache
def scenarios() -> dict[str, Scenario]:
    """Return raytwin's scenarios by name: the paper's figures in its order, then the others.

    Raises whatever a broken module raises, and TypeError for one that breaks
    the rules of `scenario`.
    """
    found: dict[str, Scenario] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        scenario = getattr(module, "SCENARIO", None)
        if scenario is not None:
            found[scenario.name] = check(info.name, scenario)
        elif _FIGURE.match(info.name):
            raise TypeError(f"scenarios/figures/{info.name}.py has no SCENARIO")
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def check(module: str, scenario: object) -> Scenario:
    """Return `scenario` if it keeps the rules; raises TypeError if not.

    It is named as its module is, with hyphens for underscores, as fault plans are.
    """
    where = f"scenarios/figures/{module}.py"
    try:
        checked = _checked(where, scenario)
    except UsageError as error:
        raise TypeError(str(error)) from None
    if checked.name != module.replace("_", "-"):
        raise TypeError(f"{where} calls its scenario {checked.name!r}")
    return checked


def _checked(where: str, scenario: object) -> Scenario:
    """Return what is somewhere if it is a scenario that keeps the rules. Raises UsageError."""
    if not isinstance(scenario, Scenario):
        kind = type(scenario).__name__
        raise UsageError(f"SCENARIO of {where} is no Scenario: it is of type {kind}")
    if not _NAME.fullmatch(scenario.name) or scenario.name == ALL:
        raise UsageError(
            f"{where} calls its scenario {scenario.name!r}: a name is letters, digits, - and _,"
            f" and not {ALL}"
        )
    foreign = set(scenario.backends) - set(BACKENDS)
    if foreign or not scenario.backends:
        raise UsageError(f"{where} names backends {sorted(foreign)}; known: {BACKENDS}")
    names = [option.name for option in scenario.options]
    if len(set(names)) < len(names):
        raise UsageError(f"{where} has two options of one name: {names}")
    return scenario


# -- scenarios of others ---------------------------------------------------------------


def find(name: str) -> Scenario:
    """Return the scenario of that name, or the one in a file of that path.

    Raises UsageError, one line, if there is none, if it is broken, or if its name is another's.
    """
    if is_file(name):
        return _in_file(Path(name))
    own = scenarios()
    points = installed()
    if name in own and name in points:
        raise UsageError(
            f"two scenarios are named {name!r}: raytwin's, and that of {_package(points[name])}:"
            " uninstall the package, or let its scenario have another name"
        )
    if name in own:
        return own[name]
    if name in points:
        return _of_package(points[name])
    raise UsageError(unknown_scenario(name, (*own, *points, ALL)))


def names() -> list[str]:
    """Return the names of raytwin's scenarios, then those of installed packages."""
    return list(dict.fromkeys([*scenarios(), *sorted(installed())]))


def is_file(name: str) -> bool:
    """Whether a name is the path of a file, as no scenario's is."""
    return name.endswith(".py") or "/" in name


def installed() -> dict[str, EntryPoint]:
    """Return the scenarios of installed packages by name, not yet imported.

    Raises UsageError if two packages have one of the same name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        there = found.setdefault(point.name, point)
        if there.value != point.value:
            raise UsageError(f"two scenarios are named {point.name!r}: those of {_package(there)}"
                             f" and {_package(point)}: uninstall one of the packages")  # fmt: skip
    return found


def source(name: str) -> str:
    """Return the file or the package that a scenario is from; "" for one of raytwin's."""
    if is_file(name):
        return name
    points = installed()
    return _package(points[name]) if name in points else ""


def _package(point: EntryPoint) -> str:
    """Return the package that an entry point is of, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _of_package(point: EntryPoint) -> Scenario:
    where = f"{point.value} in {_package(point)}"
    try:
        scenario = point.load()
    except Exception as error:
        raise UsageError(f"{where} cannot be imported: {_line(error)}") from error
    checked = _checked(where, scenario)
    if checked.name != point.name:
        raise UsageError(f"{where} calls its scenario {checked.name!r}, and its entry point"
                         f" {point.name!r}: give both one name")  # fmt: skip
    return checked


def _in_file(path: Path) -> Scenario:
    """Return the scenario in a file, which is executed anew each time."""
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}: give a Python file with a SCENARIO, or a name that"
                         " 'raytwin list' has")  # fmt: skip
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = ModuleType(f"raytwin_scenario_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module
    try:
        # Not by an import, which keeps bytecode: stale if the file changes within a second.
        exec(compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise UsageError(f"{path} cannot be imported: {_line(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)
    scenario = getattr(module, "SCENARIO", None)
    if scenario is None:
        raise UsageError(f"{path} has no SCENARIO: a scenario's file names it so, as in SCENARIO ="
                         " Scenario(...) of raytwin.scenarios.core.scenario")  # fmt: skip
    checked = _checked(str(path), scenario)
    if checked.name in names():
        raise UsageError(f"{path} calls its scenario {checked.name!r}, and there is one of that"
                         " name already, see 'raytwin list': give it another")  # fmt: skip
    return replace(checked, file=str(path))


def _line(error: BaseException, path: Path | None = None) -> str:
    """Return an error in one line; of one that a file has raised, the last line of it, too."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if path and each.filename == str(path.resolve())]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def with_others(known: Iterable[str], files: Iterable[str] = ()) -> dict[str, Scenario]:
    """Return raytwin's scenarios, those of `known` that packages have, and those in files.

    Raises UsageError for what cannot be loaded.
    """
    found = dict(scenarios())
    points = installed()
    found |= {name: find(name) for name in known if name in points}
    for file in files:
        scenario = find(file)
        found[scenario.name] = scenario
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts fig9 before fig10a, and both before what is no figure of the paper."""
    ours = (0 if _FIGURE.match(name) else 1, "")
    return [ours] + [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
