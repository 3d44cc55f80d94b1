"""Scenarios are found, ordered, and held to the rules."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType

import pytest

from raytwin.scenarios.cli import values
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.core.scenario import BEYOND, UsageError
from raytwin.scenarios.measure import registry, runner
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


# -- scenarios of others ---------------------------------------------------------------

FILE = MODULE.format(name="mine")


def refused(name: str) -> str:
    """Return the line in which a scenario is refused."""
    with pytest.raises(UsageError) as caught:
        registry.find(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_found_by_its_path_and_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a-file.py"
    path.write_text(FILE)
    assert registry.find(str(path)).title == "t"
    path.write_text(FILE.replace('"t"', '"u"'))
    assert registry.find(str(path)).title == "u"
    assert registry.source(str(path)) == str(path)


def test_a_file_imports_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_mine.py").write_text("TITLE = 'its title'\n")
    path = tmp_path / "mine.py"
    path.write_text("import neighbour_of_mine\n" + FILE.replace('"t"', "neighbour_of_mine.TITLE"))
    assert registry.find(str(path)).title == "its title"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("VALUE = 1", "has no SCENARIO"),
        ("SCENARIO = 3", "is no Scenario: it is of type int"),
        ("\nimport nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that"),
        ("\n\ndef f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero (line 4)"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('no')", "SystemExit: no (line 2)"),
        (MODULE.format(name="fig8b"), "'fig8b', and there is one of that name already"),
        (MODULE.format(name="all"), "calls its scenario 'all'"),
        (MODULE.format(name="../mine"), "calls its scenario '../mine'"),
        (FILE.replace('"sim"', '"moon"'), "names backends ['moon']"),
    ],
)
def test_a_file_without_a_scenario_is_refused_in_a_line(
    tmp_path: Path, text: str, line: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert line in refused(str(path))
    assert str(path) in refused(str(path))


def test_what_is_no_file_is_refused_in_a_line(tmp_path: Path) -> None:
    assert "does not exist" in refused(str(tmp_path / "absent.py"))
    assert "is a directory" in refused(str(tmp_path))
    assert "did you mean 'fig8b'" in refused("fig8bb")


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "one.py", tmp_path / "two.py"]
    for path in paths:
        path.write_text(FILE)
    with pytest.raises(UsageError, match=r"one.py and .*two.py call their scenarios 'mine'"):
        runner.plan([str(path) for path in paths])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module path, for packages that are installed there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("of_others_")]:
        del sys.modules[name]


def install(site: Path, package: str, entry: str, text: str) -> None:
    """Install a package of one module with one entry point."""
    folder = site / f"{package}-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n")
    (site / f"of_others_{package}.py").write_text(text)


def test_a_package_brings_a_scenario(site: Path) -> None:
    install(site, "theirs", "mine = of_others_theirs:SCENARIO", FILE)
    assert registry.find("mine").title == "t"
    assert registry.names()[-1] == "mine"
    assert registry.source("mine") == "theirs 1.2"
    assert [job.name for job in runner.plan(["mine"])] == ["mine on sim"]
    assert "mine" in registry.with_others({"mine"})
    assert "mine" not in registry.scenarios()


@pytest.mark.parametrize(
    ("entry", "text", "line"),
    [
        ("mine = of_others_theirs:SCENARIO", "import nothing_of_that_name", "ModuleNotFoundError"),
        ("mine = of_others_theirs:NOTHING", FILE, "AttributeError"),
        ("mine = of_others_theirs", FILE, "is no Scenario: it is of type module"),
        ("ours = of_others_theirs:SCENARIO", FILE, "'mine', and its entry point 'ours'"),
        ("fig8b = of_others_theirs:SCENARIO", FILE, "two scenarios are named 'fig8b': raytwin's"),
    ],
)
def test_a_broken_package_is_refused_in_a_line(
    site: Path, entry: str, text: str, line: str
) -> None:
    install(site, "theirs", entry, text)
    found = refused(entry.partition(" ")[0])
    assert line in found
    assert "theirs 1.2" in found
    assert registry.find("fig9").name == "fig9", "others are not harmed"


def test_two_packages_with_one_name_are_refused(site: Path) -> None:
    install(site, "theirs", "mine = of_others_theirs:SCENARIO", FILE)
    install(site, "others", "mine = of_others_others:SCENARIO", FILE)
    found = refused("mine")
    assert "theirs 1.2" in found
    assert "others 1.2" in found


def test_a_broken_package_is_listed_after_the_others(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "theirs", "mine = of_others_theirs:SCENARIO", FILE)
    install(site, "broken", "broken = of_others_broken:SCENARIO", "1 / 0")
    with pytest.raises(SystemExit) as left:
        app(["list", "--json"])
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert '"from": "theirs 1.2"' in out
    assert err.count("\n") == 1
    assert "of_others_broken:SCENARIO in broken 1.2 cannot be imported: ZeroDivision" in err


# -- completion ------------------------------------------------------------------------


def test_a_shell_completes_the_names_that_are_listed() -> None:
    assert {*registry.scenarios(), "all"} == set(values.scenarios(""))
    assert values.scenarios("fig14") == ["fig14a", "fig14b"]
