"""The pages for readers name existing files, commands, targets, options and cases."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from statistics import median

import pytest
import typer

import raytwin
import raytwin.runtime.containers.docker_backend
import raytwin.runtime.processes.spawn.local_backend
import raytwin.simulator.cluster.sim_backend
from raytwin.runtime.api.options.init_options import names_of
from raytwin.runtime.session.cluster_config import cluster_config
from raytwin.scenarios.bench.run import KNOWN, NAMES
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.cli.what_if import Point, accuracy
from raytwin.simulator.cluster.cluster_usage import Usage
from tests.chaos.test_mutants import EVERY_MUTANT, WITHIN

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("runtime", "simulator", "chaos", "scenarios", "reports", "tests", "docs")
FILES = [
    "/" + path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
]
page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def blocks(text: str) -> str:
    """Return what stands in the fenced and indented blocks of a page."""
    fenced = re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
    return "\n".join([*fenced, *re.findall(r"(?m)^ {4}(\S.*)$", text)])


def table(text: str, heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the first table below a heading."""
    below = text.split(f"{heading}\n", 1)[1]
    rows = re.search(r"(?m)(^\|.*\n)+", below)
    assert rows is not None, heading
    for row in rows[0].splitlines()[2:]:
        yield [cell.strip() for cell in row.strip("|").split(" | ")]


def code(text: str) -> list[str]:
    """Return what stands in backquotes."""
    return re.findall(r"`([^`\n]+)`", text)


def missing_paths(text: str) -> list[str]:
    """Return the paths and file names in backquotes, or in a tree, that no file has."""
    named = [word for word in code(text) if re.fullmatch(r"[\w./-]+\.(py|toml|md|json)", word)]
    named += [word for word in code(text) if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./-]+", word)]
    named += re.findall(r"\b[a-z]\w*\.py\b", blocks(text).replace("script.py", ""))
    suffixes = {"/" + word.strip("/") for word in named}
    at_the_top = {"/" + path.name for path in ROOT.iterdir()}
    return sorted(
        suffix for suffix in suffixes - at_the_top if not any(f.endswith(suffix) for f in FILES)
    )


def missing_links(text: str, path: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    return [link for link in links if "://" not in link and not (path.parent / link).exists()]


def wrong_commands(text: str) -> list[str]:
    """Return the ``raytwin`` command lines in blocks that the program would not know."""
    commands = typer.main.get_command(app)
    wrong = []
    for line in blocks(text).splitlines():
        found = re.match(r"(?:[A-Z_]+=\S+ )?raytwin (.*?)(?:  .*)?$", line.split("#")[0].rstrip())
        if found is None:
            continue
        name, *words = shlex.split(found[1].replace("[", " ").replace("]", " "))
        command = commands.commands.get(name)
        if command is None:
            wrong.append(line)
            continue
        known = {option for parameter in command.params for option in parameter.opts}
        if not known >= {word for word in words if word.startswith("-")}:
            wrong.append(line)
    return wrong


@page
def test_files_that_are_named_exist(page: Path) -> None:
    assert missing_paths(page.read_text()) == []


@page
def test_links_lead_somewhere(page: Path) -> None:
    assert missing_links(page.read_text(), page) == []


@page
def test_commands_are_the_programs(page: Path) -> None:
    assert wrong_commands(page.read_text()) == []


@page
def test_make_has_the_targets(page: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    text = page.read_text()
    named = re.findall(r"(?m)^(?:[A-Z_]+=\S+ )?make ([a-z]+)", blocks(text))
    named += [word.split()[1] for word in code(text) if word.startswith("make ")]
    assert set(named) <= targets


def test_the_tests_of_this_file_can_fail() -> None:
    text = (
        "`runtime/control/nothing.py` `gcs.py` `tables/none.py` [x](nowhere.md) [y](api.md)\n"
        "```\nraytwin list\nraytwin nothing\nraytwin run NAME --nothing 3   what it is\n```\n"
    )
    assert missing_paths(text) == ["/runtime/control/nothing.py", "/tables/none.py"]
    assert missing_links(text, ROOT / "docs" / "page.md") == ["nowhere.md"]
    assert len(wrong_commands(text)) == 2


def test_the_control_planes_table_has_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = [
        name.rstrip("/")
        for cells in table(text, "### The packages of the control plane")
        for name in code(cells[0])
    ]
    there = [
        path.parent.relative_to(ROOT / "runtime" / "control").as_posix()
        for path in (ROOT / "runtime" / "control").rglob("*/__init__.py")
    ]
    assert sorted(named) == sorted(there)


def test_every_mutant_holds_a_promise() -> None:
    text = (ROOT / "docs" / "promises.md").read_text()
    rows = re.findall(r"(?m)^\| defects \| (.*) \|$", text)
    assert len(rows) == text.count("\n## G")
    named = {name for row in rows for name in re.findall(r'"([^"]+)"', row)}
    assert named == EVERY_MUTANT.keys() == WITHIN.keys()


def test_the_options_of_init_are_its_options() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    rows = list(table(text, "## Options of `init`"))
    local = names_of(raytwin.runtime.processes.spawn.local_backend.start, cluster_config)
    docker = names_of(raytwin.runtime.containers.docker_backend.start, cluster_config)
    sim = names_of(raytwin.simulator.cluster.sim_backend.start, cluster_config)
    shared = set(inspect.signature(raytwin.init).parameters) | {"more_resources"}
    named = {name for cells in rows for name in code(cells[0])}
    takers = {
        "local": shared | set(local), "sim": shared | set(sim), "docker": shared | set(docker)
    }  # fmt: skip
    assert named <= set().union(*takers.values())
    assert set().union(local, sim, docker) - {"more_resources"} <= named
    for cells in rows:
        only = re.search(r"only on `(docker|local|sim)`", cells[1])
        for name in code(cells[0]):
            there = {backend for backend, names in takers.items() if name in names}
            assert there == ({only[1]} if only else takers.keys()), name


def test_what_whatif_says_of_accuracy_is_what_was_measured() -> None:
    text = (ROOT / "docs" / "measured.md").read_text()
    usage = Usage(1.0, 1, 1.0, 1, 0, 0, {})
    long, short = (
        accuracy([Point(1, None, None, None, 1.0, usage, body_s=body_s)]) for body_s in (0.01, 0.0)
    )
    for said in long, short:
        heading = re.search(r"docs/measured\.md \((.*?)\)", said)
        assert heading is not None and f"\n## {heading[1]}\n" in text

    def errors(rows: list[list[str]], column: int) -> list[float]:
        found = [re.match(r"[-+]?[\d.]+", row[column]) for row in rows]
        return sorted(abs(float(each[0])) for each in found if each is not None)

    scripts = [
        row
        for row in table(text, "## How close, for a script")
        if row[0] != "`synchronous_server`"  # its bodies are shorter
    ]
    after, later = errors(scripts, 4), errors(scripts, 6)
    assert f"{after[0]} to {after[-1]} % off" in long and f"{later[0]} to {later[-1]} %" in long
    assert len({row[0] for row in scripts}) == 4 and "four such scripts" in long

    below = "## How close, for programs that the calibration has not seen"
    groups = re.search(r"Median errors of makespans:(.*?)\(", text.split(below)[1], re.S)
    assert groups is not None
    medians = sorted(map(int, re.findall(r"(\d+) % for", groups[1])))
    worst = errors(list(table(text, below)), 4)[-1]
    assert (
        f"{medians[0]} to {medians[-1]} % off" in short
        and f"the worst makespan {worst:.0f} %" in short
    )


def test_what_the_readme_says_of_accuracy_is_what_was_measured() -> None:
    text = (ROOT / "docs" / "measured.md").read_text()
    said = " ".join((ROOT / "README.md").read_text().split())

    def error(cell: str) -> int:
        return abs(int(re.match(r"[-+]?\d+", cell)[0]))  # type: ignore[index]

    programs = list(table(text, "## How close, for programs that the calibration has not seen"))
    working = [error(row[4]) for row in programs if row[0].endswith("_with_work`")]
    # An error in the table is rounded.
    assert len(working) == 6 and f"for 1 ms are within {max(working) + 1} % on two cores" in said
    figures = [error(row[-1]) for row in table(text, "## How close")]
    assert len(figures) == 18
    off = (
        f"those of the figures are off by {min(figures)} to {max(figures)} % in the median of three"
    )
    assert f"{off} reproductions, half of them by less than {ceil(median(figures))} %" in said


def test_the_benchmark_has_the_cases() -> None:
    text = (ROOT / "docs" / "howto.md").read_text()
    listed = text.split("a row per case: ")[1].split(".\n")[0]
    assert sorted(code(listed)) == sorted(NAMES)
    assert all(f"`{name}`" in text for name in KNOWN)
