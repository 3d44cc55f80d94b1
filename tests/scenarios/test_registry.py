"""Scenarios are found, ordered, and held to the rules."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType

import pytest

from raytwin.scenarios.cli import values
from raytwin.scenarios.core.scenario import BEYOND
from raytwin.scenarios.measure import registry
from tests.scenarios.synthetic import SCALING

MODULE = """
from raytwin.scenarios.core.scenario import Outcome, Scenario
SCENARIO = Scenario("{name}", "t", "f", ("sim",), lambda request: Outcome([]), "a")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package in the place of `scenarios`."""
    module = ModuleType("fake_scenarios")
    module.__path__ = [str(tmp_path)]
    monkeypatch.setattr(registry, "package", module)
    monkeypatch.setitem(sys.modules, "fake_scenarios", module)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("fake_scenarios.")]:
        del sys.modules[name]


def find() -> dict[str, object]:
    return registry.scenarios.__wrapped__()


def test_paper_order_and_helpers_left_out(package: Path) -> None:
    for name in ("fig10a", "a_plan", "fig8b", "table3", "fig8a"):
        (package / f"{name}.py").write_text(MODULE.format(name=name.replace("_", "-")))
    (package / "workloads.py").write_text("VALUE = 1")
    assert list(find()) == ["fig8a", "fig8b", "fig10a", "table3", "a-plan"]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("fig1", "import nothing_of_that_name", ModuleNotFoundError),
        ("fig1", "def broken(:", SyntaxError),
        ("fig1", "VALUE = 1", TypeError),
        ("fig1", "SCENARIO = 3", TypeError),
        ("fig1", MODULE.format(name="fig2"), TypeError),
    ],
)
def test_broken_module_is_an_error(
    package: Path, name: str, text: str, error: type[Exception]
) -> None:
    (package / f"{name}.py").write_text(text)
    with pytest.raises(error):
        find()


@pytest.mark.parametrize(
    "change",
    [
        {"backends": ()},
        {"backends": ("sim", "moon")},
        {"options": (SCALING.options[0], SCALING.options[0])},
    ],
)
def test_rules(change: dict[str, object]) -> None:
    registry.check("scaling", SCALING)
    with pytest.raises(TypeError):
        registry.check("scaling", dataclasses.replace(SCALING, **change))


def test_the_real_scenarios_load() -> None:
    for name, scenario in find().items():
        assert scenario.name == name
        assert (scenario.headline is None) == (scenario.figure == BEYOND), name


def test_a_shell_completes_the_names_that_are_listed() -> None:
    assert {*registry.scenarios(), "all"} == set(values.scenarios(""))
    assert values.scenarios("fig14") == ["fig14a", "fig14b"]
