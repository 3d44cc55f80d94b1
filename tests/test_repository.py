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
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest

import raytwin
from tests.import_cycles import cycles, imports_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("runtime", "simulator", "chaos", "scenarios", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = {c["name"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}

OWNERS = {
    "socket": ("raytwin.runtime.processes", "raytwin.chaos.toxiproxy"),
    "socketserver": ("raytwin.runtime.processes",),
    # The simulator's waits in virtual time, not for files.
    "selectors": ("raytwin.runtime.processes", "raytwin.simulator.programs.virtual_world"),
    # Its event loops are part of the API (async actors); its sockets are not.
    "asyncio.open_connection": ("raytwin.runtime.processes",),
    "asyncio.start_server": ("raytwin.runtime.processes", "raytwin.chaos.toxiproxy"),
    "docker": ("raytwin.runtime.containers",),
    "mmap": ("raytwin.runtime.store",),
    "multiprocessing.shared_memory": ("raytwin.runtime.store",),
    "os.memfd_create": ("raytwin.runtime.store",),
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

SIMULATOR_MAY_IMPORT = (
    "raytwin.runtime.api",
    "raytwin.runtime.control",
    "raytwin.runtime.execution",
    "raytwin.runtime.journal",
    "raytwin.runtime.serialization",
    "raytwin.runtime.session",
)


# -- reading source ------------------------------------------------------------


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield (dotted name, syntax tree) of every module that is shipped."""
    for path in shipped():
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(("raytwin", *parts) if parts[0] in PACKAGES else parts)
        yield name, ast.parse(path.read_text(), filename=str(path))


def shipped() -> list[Path]:
    """Return every module of the distribution, each once: the folders are links in `raytwin/`."""
    folders = (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))
    return [ROOT / "raytwin_pytest.py", *(ROOT / "raytwin").glob("*.py"), *folders]


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
    if not within(module, "raytwin.runtime.control"):
        return
    for line, name in used(module, tree):
        if not within(name, "raytwin.runtime.control", *CONTROL_MAY_IMPORT):
            yield f"{module}:{line} uses {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in IO_BUILTINS:
            yield f"{module}:{node.lineno} calls {node.id}"


def simulator_reach(module: str, tree: ast.Module) -> Iterator[str]:
    """Of the runtime, the simulator knows the control plane, the API and the protocol."""
    if not within(module, "raytwin.simulator"):
        return
    for line, name in used(module, tree):
        if within(name, "raytwin.runtime") and not within(name, *SIMULATOR_MAY_IMPORT):
            yield f"{module}:{line} uses {name}"


def figure_numbers(module: str, tree: ast.Module) -> Iterator[str]:
    """Only scenario files know a figure's number; docstrings may cite one."""
    if within(module, "raytwin.scenarios"):
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
    if not within(module, "raytwin.runtime.api"):
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
    if not within(
        module,
        "raytwin.runtime.control",
        "raytwin.chaos.fuzz.oracle.legitimate_errors",
    ):
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
        (foreign_hands, "raytwin.simulator.machine.network", "import socket"),
        (foreign_hands, "raytwin.runtime.store.arena", "def f():\n    from socket import send_fds"),
        (foreign_hands, "raytwin.runtime.processes.node.node_process", "import mmap"),
        (
            foreign_hands,
            "raytwin.runtime.processes.node.node_process",
            "import os\nos.memfd_create('x')",
        ),
        (foreign_hands, "raytwin.runtime.processes.spawn.zygote", "import docker"),
        (foreign_hands, "raytwin.runtime.api", "from multiprocessing import shared_memory"),
        (impure_control, "raytwin.runtime.control.gcs.gcs", "import time"),
        (impure_control, "raytwin.runtime.control.gcs.gcs", "import numpy"),
        (impure_control, "raytwin.runtime.control.gcs.gcs", "import importlib\nimportlib.reload"),
        (impure_control, "raytwin.runtime.control.gcs.gcs", "from ... import store"),
        (impure_control, "raytwin.runtime.control.__init__", "from ..store import arena"),
        (impure_control, "raytwin.runtime.control.gcs.gcs", "print('here')"),
        (simulator_reach, "raytwin.simulator.context", "from raytwin.runtime import processes"),
        (simulator_reach, "raytwin.simulator.context", "import raytwin.runtime.store.arena"),
        (simulator_reach, "raytwin.simulator.context", "from ..runtime.wire import Frame"),
        (figure_numbers, "raytwin.reports.html", "KIND = {'fig8b': 1}"),
        (figure_numbers, "raytwin.simulator.machine.costs", "def figure_9(): pass"),
        (named_backends, "raytwin.runtime.api.util.pool", "if current().name == 'sim': pass"),
        (named_backends, "raytwin.runtime.api.util.pool", "real = 'sim' != state.present().name"),
        (compared_prose, "raytwin.runtime.control.gcs.gcs", "why == 'its owner has died'"),
        (
            compared_prose,
            "raytwin.runtime.control.gcs.gcs",
            "PUT = 'it was put'\nwhy.startswith(PUT)",
        ),
        (
            compared_prose,
            "raytwin.chaos.fuzz.oracle.legitimate_errors",
            "FOUND = re.compile(r'object (.*) is lost')",
        ),
    ],
)
def test_rule_can_be_broken(rule: Rule, module: str, code: str) -> None:
    assert list(rule(module, ast.parse(code)))


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    [
        (foreign_hands, "raytwin.runtime.processes.net.wire", "import socket\nsocket.AF_UNIX"),
        (foreign_hands, "raytwin.runtime.store.arena", "import os, mmap\nos.memfd_create('x')"),
        (foreign_hands, "raytwin.runtime.api", "import os\nos.environ"),
        (impure_control, "raytwin.runtime.control.gcs.gcs", "from ..messages import Frame"),
        (impure_control, "raytwin.runtime.control.__init__", "from .gcs import Gcs"),
        (
            impure_control,
            "raytwin.runtime.control.scheduling.policies",
            "import random\nrandom.Random(1)",
        ),
        (
            simulator_reach,
            "raytwin.simulator.programs.virtual_world",
            "from raytwin.runtime.control.gcs.gcs import Gcs",
        ),
        (figure_numbers, "raytwin.simulator.machine.costs", '"""Fitted to figure 8b."""'),
        (figure_numbers, "raytwin.scenarios.figures.fig8b", "NAME = 'fig8b'"),
        (named_backends, "raytwin.runtime.api.util.pool", "if current().address: pass"),
        (named_backends, "raytwin.chaos.injectors", "if current().name == 'sim': pass"),
        (compared_prose, "raytwin.runtime.control.gcs.gcs", "address.startswith('node:')"),
        (compared_prose, "raytwin.runtime.api.failures", "text == 'its owner has died'"),
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
    ("Layers", "runtime/api.py", "import raytwin.simulator"),
    ("Layers", "simulator/world.py", "import raytwin.chaos"),
    ("Layers", "chaos/fuzz/run/campaign.py", "import raytwin.scenarios"),
    ("Layers", "chaos/fuzz/run/campaign.py", "import raytwin.reports"),
    ("The control plane knows nothing else", "runtime/control/gcs/gcs.py",
     "from raytwin.runtime import api"),
    ("The control plane does no I/O", "runtime/control/gcs/gcs.py", "import threading"),
    ("The control plane uses no library", "runtime/control/gcs/gcs.py", "import simpy"),
    ("The simulator uses", "simulator/world.py", "from raytwin.runtime.store import arena"),
    ("Layers of the control plane", "runtime/control/core/ids.py",
     "import raytwin.runtime.control.node"),
    ("Layers of the control plane", "runtime/control/client/client.py",
     "import raytwin.runtime.control.objects"),
    ("Layers of the control plane", "runtime/control/gcs/sharding/shard.py",
     "import raytwin.runtime.control.actors"),
    ("Shards of the GCS", "runtime/control/gcs/gcs.py",
     "import raytwin.runtime.control.gcs.sharding"),
    ("Layers of the simulator", "simulator/machine/host.py", "import raytwin.simulator.programs"),
    ("Layers of the simulator", "simulator/programs/loop.py", "import raytwin.simulator.cluster"),
    ("Layers of the processes", "runtime/processes/net/wire.py",
     "import raytwin.runtime.processes.node"),
    ("Layers of the processes", "runtime/processes/head/head.py",
     "import raytwin.runtime.processes.client"),
    ("Layers of the processes", "runtime/processes/client/world.py",
     "import raytwin.runtime.processes.spawn"),
    ("Containers stand on the processes", "runtime/processes/spawn/local_cluster.py",
     "import raytwin.runtime.containers"),
    ("Layers of chaos", "chaos/faults/plan/plan.py", "import raytwin.chaos.fuzz"),
    ("Layers of chaos", "chaos/toxiproxy/proxy.py", "import raytwin.chaos.faults"),
    ("Layers of chaos", "chaos/faults/injector.py", "import raytwin.chaos.clusters_in_tests"),
    ("Layers of the fuzz", "chaos/fuzz/generate/cases.py", "import raytwin.chaos.fuzz.run"),
    ("Layers of the fuzz", "chaos/fuzz/generate/cases.py", "import raytwin.chaos.fuzz.oracle"),
    ("Layers of the fuzz", "chaos/fuzz/programs/program.py",
     "import raytwin.chaos.fuzz.generate"),
    ("Layers of the faults", "chaos/faults/targets/node.py", "import raytwin.chaos.faults.plan"),
    ("Layers of scenarios", "scenarios/core/scenario.py", "import raytwin.scenarios.measure"),
    ("Layers of scenarios", "scenarios/cli/execute.py", "import raytwin.scenarios.interactive"),
    ("Layers of scenarios", "scenarios/figures/fig8b.py", "import raytwin.scenarios.measure"),
    ("Layers of scenarios", "scenarios/workloads/programs.py", "import raytwin.scenarios.peers"),
    ("Reports read results", "reports/html.py", "import raytwin.scenarios.measure"),
    ("Reports read results", "scenarios/core/results.py", "import raytwin.reports"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("contract", "file", "code"), BREAKS)
def test_every_arrow_can_be_broken(tmp_path: Path, contract: str, file: str, code: str) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    root = tmp_path / "raytwin"
    inside = [
        "containers", "control", "execution", "processes", "serialization", "session", "store",
    ]  # fmt: skip
    parts = [
        "actors", "channels", "client", "core", "gcs", "gcs/sharding", "local_scheduler",
        "messages", "node", "objects", "observability", "ownership", "replication", "scheduling",
        "worker",
    ]  # fmt: skip
    rooms = [
        *(f"runtime/control/{name}" for name in parts),
        *(f"runtime/processes/{name}" for name in ("net", "node", "head", "client", "spawn")),
        *(f"simulator/{name}" for name in ("machine", "programs", "cluster")),
        *(f"chaos/{name}" for name in ("chaostoolkit", "clusters_in_tests", "faults", "fuzz")),
        "chaos/toxiproxy",
        *(f"chaos/fuzz/{name}" for name in ("programs", "generate", "oracle", "run")),
        *(f"chaos/faults/{name}" for name in ("injector", "plan_files", "plan_schema", "plan")),
        *(f"chaos/faults/{name}" for name in ("expectations", "targets", "actions", "parameters")),
        *(
            f"chaos/faults/{name}"
            for name in ("cluster_operations", "proxied_links", "recovery_summary")
        ),
        *(f"scenarios/{name}" for name in ("applications", "bench", "cli", "core", "figures")),
        *(f"scenarios/{name}" for name in ("interactive", "measure", "peers", "workloads")),
    ]
    for package in ["", *PACKAGES, *(f"runtime/{name}" for name in inside), *rooms]:
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    for module in ["runtime/api.py", "runtime/control/assembly.py", "runtime/store/arena.py"]:
        (root / module).touch()
    assert lint_imports(tmp_path).returncode == 0, "the skeleton itself is sound"
    (root / file).write_text(code + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"{re.escape(contract)}.*\sBROKEN", done.stdout, re.DOTALL), done.stdout


def import_graph(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return what each module imports of the others; a package's `__init__` has its name."""
    names = {module: module.removesuffix(".__init__") for module in trees}
    return {
        name: imports_of(module, trees[module], names.values()) for module, name in names.items()
    }


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = import_graph(dict(sources()))
    found = cycles(graph)
    arrows = [
        f"{module} -> {target}"
        for cycle in found
        for module in cycle
        for target in sorted(graph[module] & set(cycle))
    ]
    assert not found, "files import one another in a cycle:\n" + "\n".join(arrows)


@pytest.mark.parametrize(
    "closing",
    [
        "from raytwin.simulator.host import Host",
        "import raytwin.simulator.host",
        "from raytwin.simulator import host",
        "from .host import Host",
        "from . import host",
        "def f():\n    from raytwin.simulator.host import Host",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .host import Host",
    ],
)
def test_a_cycle_of_imports_is_found(closing: str) -> None:
    code = {
        "raytwin.simulator.__init__": "",
        "raytwin.simulator.host": "from raytwin.simulator.clock import Clock",
        "raytwin.simulator.clock": "import raytwin.simulator.costs",
        "raytwin.simulator.costs": "",
        "raytwin.simulator.world": "from raytwin.simulator import host, costs",
    }
    assert cycles(import_graph({name: ast.parse(text) for name, text in code.items()})) == []
    code["raytwin.simulator.costs"] = closing
    (found,) = cycles(import_graph({name: ast.parse(text) for name, text in code.items()}))
    assert found == ["raytwin.simulator." + name for name in ("clock", "costs", "host")]


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
    assert [path for path in shipped() if literal.search(path.read_text())] == []


def test_the_console_script_exists() -> None:
    module, _, name = PROJECT["project"]["scripts"]["raytwin"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_pytest_finds_the_plugin() -> None:
    assert PROJECT["project"]["entry-points"]["pytest11"] == {"raytwin": "raytwin_pytest"}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["raytwin", "raytwin_pytest.py"]


def test_every_library_that_is_imported_is_declared() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {normal(re.split(r"[<>=!~ ;\[]", line)[0]) for line in lines}
    by_module = metadata.packages_distributions()
    known = {*sys.stdlib_module_names, "raytwin", "tests"}
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
