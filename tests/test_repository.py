"""The repository keeps its own rules: arrows, ownership, purity, one version.

import-linter holds the arrows between packages (its contracts are in
``pyproject.toml``). What it cannot say is checked here on the syntax trees: who
may know a socket or shared memory, what the control plane may import at all,
and that only scenario files know a figure's number. Every rule is also run on
code that breaks it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

import raytwin

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("runtime", "simulator", "chaos", "scenarios", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = {c["name"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}

OWNERS = {
    "socket": ("runtime.processes",),
    "socketserver": ("runtime.processes",),
    # The simulator's waits in virtual time, for no file at all.
    "selectors": ("runtime.processes", "simulator.event_loop"),
    # Its event loops are part of the API (async actors); its sockets are not.
    "asyncio.open_connection": ("runtime.processes",),
    "asyncio.start_server": ("runtime.processes",),
    "mmap": ("runtime.store",),
    "multiprocessing.shared_memory": ("runtime.store",),
    "os.memfd_create": ("runtime.store",),
}
"""The packages that may use a module or function."""

CONTROL_MAY_IMPORT = {
    "__future__", "_blake2", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses",
    "enum", "functools", "heapq", "itertools", "math", "msgspec", "operator", "random",
    "statistics", "string", "struct", "types", "typing", "zlib.crc32",
    "importlib.import_module",  # A user's policy is named by its import path.
}  # fmt: skip
"""What the control plane may import besides itself: nothing that does I/O."""

IO_BUILTINS = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}

SIMULATOR_MAY_IMPORT = ("runtime.control", "runtime.api", "runtime.backend")


# -- reading source ------------------------------------------------------------


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield (dotted name, syntax tree) of every module that is shipped."""
    for path in [ROOT / "raytwin.py", *(p for d in PACKAGES for p in (ROOT / d).rglob("*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts), ast.parse(path.read_text(), filename=str(path))


def within(name: str, *packages: str) -> bool:
    """Whether dotted `name` is one of `packages` or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def used(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of all that `module` imports or reaches through an import.

    ``from a import b`` yields ``a.b``; ``import a`` yields ``a``, and each
    ``a.b`` in the code ``a.b``.
    """
    local: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                name = alias.asname or alias.name.partition(".")[0]
                local[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.removesuffix(".__init__").split(".")
                cut = node.level - module.endswith(".__init__")
                base = ".".join([*package[: len(package) - cut], *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = local.get(node.value.id)
            if name is not None:
                yield node.lineno, f"{name}.{node.attr}"


LOOKS_INTO_TEXT = (
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split",
    "index", "find", "compile", "search", "match", "fullmatch",
)  # fmt: skip


def docstrings(tree: ast.Module) -> set[ast.AST]:
    """Return the constants that are text for readers: strings that are statements."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


# -- rules: each yields what is wrong ------------------------------------------


def foreign_hands(module: str, tree: ast.Module) -> Iterator[str]:
    """Only its owner uses what `OWNERS` names."""
    for line, name in used(module, tree):
        for thing, owners in OWNERS.items():
            if within(name, thing) and not within(module, *owners):
                yield f"{module}:{line} uses {name}, which only {' and '.join(owners)} may"


def impure_control(module: str, tree: ast.Module) -> Iterator[str]:
    """The control plane imports the pure standard library, msgspec and itself."""
    if not within(module, "runtime.control"):
        return
    for line, name in used(module, tree):
        if not within(name, "runtime.control", *CONTROL_MAY_IMPORT):
            yield f"{module}:{line} uses {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in IO_BUILTINS:
            yield f"{module}:{node.lineno} calls {node.id}"


def simulator_reach(module: str, tree: ast.Module) -> Iterator[str]:
    """Of the runtime, the simulator knows the control plane, the API and the protocol."""
    if not within(module, "simulator"):
        return
    for line, name in used(module, tree):
        if within(name, "runtime") and not within(name, *SIMULATOR_MAY_IMPORT):
            yield f"{module}:{line} uses {name}"


def figure_numbers(module: str, tree: ast.Module) -> Iterator[str]:
    """Only scenario files know a figure's number; docstrings may cite one."""
    if within(module, "scenarios", "raytwin"):
        return
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            text = node.value
        elif isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = node.name
        else:
            continue
        if re.search(r"(?i)(?<![a-z])(fig|figure|table)[ ._]?\d", text):
            yield f"{module}:{node.lineno} knows {text!r}"


def named_backends(module: str, tree: ast.Module) -> Iterator[str]:
    """The API asks a backend what it needs to know, and never which one it is."""
    if not within(module, "runtime.api"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                if (
                    isinstance(side, ast.Attribute)
                    and side.attr == "name"
                    and isinstance(side.value, ast.Call)
                    and ast.unparse(side.value.func).rpartition(".")[2] in ("current", "present")
                ):
                    yield f"{module}:{node.lineno} asks for a backend by name"


def compared_prose(module: str, tree: ast.Module) -> Iterator[str]:
    """State is an enum or a struct: nobody looks for a sentence in what somebody else says."""
    if not within(module, "runtime.control", "chaos.fuzz", "chaos.ended"):
        return
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            sides = node.args if node.func.attr in LOOKS_INTO_TEXT else []
        for side in sides:
            value = named.get(side.id, side) if isinstance(side, ast.Name) else side
            for part in ast.walk(value):
                if isinstance(part, ast.Constant) and re.search(r"\w \w", str(part.value)):
                    yield f"{module}:{node.lineno} looks for {part.value!r}"


RULES = [
    foreign_hands,
    impure_control,
    simulator_reach,
    figure_numbers,
    named_backends,
    compared_prose,
]
Rule = Callable[[str, ast.Module], Iterator[str]]


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_kept(rule: Rule) -> None:
    offences = [offence for module, tree in sources() for offence in rule(module, tree)]
    assert offences == []


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    [
        (foreign_hands, "simulator.network", "import socket"),
        (foreign_hands, "runtime.store.arena", "def f():\n    from socket import send_fds"),
        (foreign_hands, "runtime.processes.node", "import mmap"),
        (foreign_hands, "runtime.processes.node", "import os\nos.memfd_create('x')"),
        (foreign_hands, "runtime.api", "from multiprocessing import shared_memory"),
        (impure_control, "runtime.control.gcs", "import time"),
        (impure_control, "runtime.control.gcs", "import numpy"),
        (impure_control, "runtime.control.gcs", "import importlib\nimportlib.reload"),
        (impure_control, "runtime.control.gcs", "from .. import store"),
        (impure_control, "runtime.control.__init__", "from ..store import arena"),
        (impure_control, "runtime.control.gcs", "print('here')"),
        (simulator_reach, "simulator.context", "from runtime import processes"),
        (simulator_reach, "simulator.context", "import runtime.store.arena"),
        (simulator_reach, "simulator.context", "from runtime.wire import Frame"),
        (figure_numbers, "reports.html", "KIND = {'fig8b': 1}"),
        (figure_numbers, "simulator.costs", "def figure_9(): pass"),
        (named_backends, "runtime.api.pool", "if current().name == 'sim': pass"),
        (named_backends, "runtime.api.pool", "real = 'sim' != state.present().name"),
        (compared_prose, "runtime.control.gcs", "why == 'its owner has died'"),
        (compared_prose, "runtime.control.gcs", "PUT = 'it was put'\nwhy.startswith(PUT)"),
        (compared_prose, "chaos.fuzz", "FOUND = re.compile(r'object (.*) is lost')"),
    ],
)
def test_rule_can_be_broken(rule: Rule, module: str, code: str) -> None:
    assert list(rule(module, ast.parse(code)))


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    [
        (foreign_hands, "runtime.processes.wire", "import socket\nsocket.AF_UNIX"),
        (foreign_hands, "runtime.store.arena", "import os, mmap\nos.memfd_create('x')"),
        (foreign_hands, "runtime.api", "import os\nos.environ"),
        (impure_control, "runtime.control.gcs", "from .messages import Frame"),
        (impure_control, "runtime.control.__init__", "from .gcs import Gcs"),
        (impure_control, "runtime.control.policies", "import random\nrandom.Random(1)"),
        (simulator_reach, "simulator.world", "from runtime.control.gcs import Gcs"),
        (figure_numbers, "simulator.costs", '"""Fitted to figure 8b."""'),
        (figure_numbers, "scenarios.fig8b", "NAME = 'fig8b'"),
        (named_backends, "runtime.api.pool", "if current().one_thread: pass"),
        (named_backends, "chaos.injectors", "if current().name == 'sim': pass"),
        (compared_prose, "runtime.control.gcs", "address.startswith('node:')"),
        (compared_prose, "runtime.api.failures", "text == 'its owner has died'"),
    ],
)
def test_rule_allows_what_is_right(rule: Rule, module: str, code: str) -> None:
    assert list(rule(module, ast.parse(code))) == []


# -- the arrows ----------------------------------------------------------------


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages in `directory`."""
    command = "from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_arrows_are_kept() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


BREAKS = [
    ("Layers", "runtime/api.py", "import simulator"),
    ("Layers", "simulator/world.py", "import chaos"),
    ("Layers", "chaos/plan.py", "import scenarios"),
    ("Layers", "chaos/plan.py", "import reports"),
    ("The control plane knows nothing else", "runtime/control/gcs.py", "from runtime import api"),
    ("The control plane does no I/O", "runtime/control/gcs.py", "import threading"),
    ("The control plane uses no library", "runtime/control/gcs.py", "import simpy"),
    ("The simulator uses", "simulator/world.py", "from runtime.store import arena"),
    ("The front door", "runtime/api.py", "def f():\n    import raytwin"),
]


@pytest.mark.parametrize(("contract", "file", "code"), BREAKS)
def test_every_arrow_can_be_broken(tmp_path: Path, contract: str, file: str, code: str) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package in [*PACKAGES, "runtime/control", "runtime/processes", "runtime/store"]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in ["runtime/api.py", "runtime/backend.py", "runtime/store/arena.py", "raytwin.py"]:
        (tmp_path / module).touch()
    assert lint_imports(tmp_path).returncode == 0, "the skeleton itself is sound"
    (tmp_path / file).write_text(code + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"{re.escape(contract)}.*\sBROKEN", done.stdout, re.DOTALL), done.stdout


def test_every_contract_has_a_break() -> None:
    unbroken = [n for n in CONTRACTS if not any(n.startswith(contract) for contract, *_ in BREAKS)]
    assert unbroken == []


def test_no_package_is_out_of_sight() -> None:
    """import-linter sees a folder only if it is a package."""
    folders = {path.parent for d in PACKAGES for path in (ROOT / d).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


# -- the distribution ----------------------------------------------------------


def test_one_version() -> None:
    version = PROJECT["project"]["version"]
    assert raytwin.__version__ == version
    assert metadata.version("raytwin") == version, "the installed metadata is old: pip install -e ."


def test_the_version_is_written_once() -> None:
    literal = re.compile(r"__version__\s*=\s*[\"']")
    shipped = [ROOT / "raytwin.py", *(p for d in PACKAGES for p in (ROOT / d).rglob("*.py"))]
    assert [path for path in shipped if literal.search(path.read_text())] == []


def test_the_console_script_exists() -> None:
    module, _, name = PROJECT["project"]["scripts"]["raytwin"].partition(":")
    assert module == "raytwin"
    assert callable(getattr(raytwin, name))


def test_every_library_that_is_imported_is_declared() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {normal(re.split(r"[<>=!~ ;\[]", line)[0]) for line in lines}
    by_module = metadata.packages_distributions()
    known = {*sys.stdlib_module_names, *PACKAGES, "raytwin", "tests"}
    missing = {
        f"{module} imports {top}"
        for module, tree in sources()
        for _, name in used(module, tree)
        if (top := name.partition(".")[0]) not in known
        and not declared & {normal(d) for d in [top, *by_module.get(top, [])]}
    }
    assert missing == set()


def normal(distribution: str) -> str:
    """Return the name that a package index compares by."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_the_licence_is_the_unmodified_text() -> None:
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
