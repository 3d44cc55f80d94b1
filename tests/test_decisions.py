"""The simulator makes no decision: what the system does is decided in `runtime`, for both worlds.

A world has mechanisms: sockets or events, threads or greenlets, bytes or sizes. A *decision* is a
rule about what the system does: which, when, how many, whether to refuse or to repeat. If it is
written in `simulator/` it is written twice, and the two drift apart. No test can read a rule off a
syntax tree, but each rule needs something to decide on and something to say, and that leaves a
trace. So this test lists, for every module of the simulator,

``setting``  a setting of `Config` that it reads, other than those of `LAYOUT`, unless it only hands
             it to a function of the control plane: rules compare with thresholds
``message``  a message of the control plane that it makes and that no mechanism of real processes
             makes: what only the control plane says, it must say itself
``state``    a state of one of the control plane's state machines that it knows
``number``   a constant whose name and value stand in `runtime` as well: a threshold, written twice
``reason``   a text of three words or more that real processes give as a reason, too: the component
             that decides an end or a failure gives its reason
``batch``    a use of a client's send buffer: when messages leave is the client's matter

and the list is empty. What leaves none of these traces, such as the order of two calls, it does not
find. That components decide alike in both worlds is `test_one_control_plane`'s subject.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from raytwin.runtime.control import messages
from raytwin.runtime.control.core.config import Config

ROOT = Path(__file__).resolve().parent.parent
CONTROL = "raytwin.runtime.control"
REAL = ("runtime/processes", "runtime/containers", "runtime/store")
"""The mechanisms of real processes."""

SETTINGS = {
    *Config.__struct_fields__,
    *(name for name, value in vars(Config).items() if isinstance(value, property)),
}
LAYOUT = {"seed", "chained", "chains", "gcs_durable"}
"""Settings that say which processes a cluster has, which each world has to start, and the seed."""

MESSAGES = {
    name
    for name, value in vars(messages).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
}
PHRASE_WORDS = 3


class Source(NamedTuple):
    """A module's path in the repository, and its syntax tree."""

    path: str
    tree: ast.Module


class Facts(NamedTuple):
    """The names and texts that `runtime` has, against which the test holds the simulator's."""

    made: set[str]
    """Messages that the mechanisms make."""
    reasons: set[str]
    numbers: set[tuple[str, str]]
    """(name, value) of constants, anywhere in `runtime`."""


def sources(*folders: str) -> list[Source]:
    """Return all modules of some folders."""
    return [
        Source(str(path.relative_to(ROOT)), ast.parse(path.read_text()))
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def facts(mechanisms: Sequence[Source], runtime: Sequence[Source]) -> Facts:
    """Return what the simulator is compared with."""
    return Facts(
        {name for each in mechanisms for _, name in made_messages(each.tree)},
        {text for each in mechanisms for _, text in reasons(each.tree)},
        {number for each in runtime for _, number in numbers(each.tree)},
    )


def decisions(source: Source, there: Facts) -> list[str]:
    """Return the decisions that a module of the simulator makes, a line each."""
    tree = source.tree
    made = ((line, name) for line, name in made_messages(tree) if name not in there.made)
    twice = ((line, each) for line, each in numbers(tree) if each in there.numbers)
    given = ((line, text) for line, text in reasons(tree) if text in there.reasons)
    found = [
        *((line, f"setting {name}") for line, name in settings_read(tree)),
        *((line, f"message {name}") for line, name in made),
        *((line, f"state {name}") for line, name in states(tree)),
        *((line, f"number {name} = {value}") for line, (name, value) in twice),
        *((line, f"reason {text!r}") for line, text in given),
        *((line, f"batch {name}") for line, name in uses_of_buffers(tree)),
    ]
    return [f"{source.path}:{line}: {what}" for line, what in sorted(found)]


# -- reading source ------------------------------------------------------------


def imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return (module, name) of what a module imports from the control plane, by its local name."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CONTROL)
        and node.module
        for alias in node.names
    }  # fmt: skip


def settings_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of settings that are read, but for those of `LAYOUT` and those that are
    handed to a function of the control plane."""
    control = imported(tree)
    handed = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in control
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in SETTINGS - LAYOUT
            and ast.unparse(node.value).rpartition(".")[2].endswith("config")
            and id(node) not in handed
        ):
            yield node.lineno, node.attr


def made_messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of messages that are made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in MESSAGES:
                yield node.lineno, name


def states(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of the control plane's enumerations of which a member is named."""
    enums = {
        local
        for local, (module, name) in imported(tree).items()
        if isinstance(getattr(import_module(module), name, None), type)
        and issubclass(getattr(import_module(module), name), Enum)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in enums
        ):
            yield node.lineno, f"{node.value.id}.{node.attr}"


def numbers(tree: ast.Module) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield (line, (name, value)) of a module's numeric constants."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            parts = [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            if (
                name.isupper()
                and parts
                and isinstance(node.value, ast.Constant | ast.BinOp)
                and all(type(part.value) in (int, float) for part in parts)
            ):
                yield node.lineno, (name, ast.unparse(node.value))


def reasons(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of phrases, but for docstrings and what TypeErrors say: a component that
    was sent a message that it does not know is a mistake of the programmer."""
    left_out = {
        id(part)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Raise) and node.exc is not None
        and ast.unparse(node.exc).startswith("TypeError("))
        for part in ast.walk(node)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip()
            if id(node) not in left_out and len(text.split()) >= PHRASE_WORDS:
                yield node.lineno, text


def uses_of_buffers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of what is called on a client's send buffer."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "buffer"
        ):
            yield node.lineno, node.attr


# -- the rule --------------------------------------------------------------------


@pytest.fixture(scope="module")
def there() -> Facts:
    return facts(sources(*REAL), sources("runtime"))


def test_the_simulator_makes_no_decision(there: Facts) -> None:
    found = [each for source in sources("simulator") for each in decisions(source, there)]
    assert not found, "\n".join(found)


def test_what_the_simulator_is_compared_with_is_there(there: Facts) -> None:
    assert {"WorkerDied", "NoRoom", "JobInfo"} <= there.made
    assert "DUE_S" in {name for name, _ in there.numbers}
    assert len(there.reasons) > 100


IMPORTS = """
from raytwin.runtime.control.channels.channel import State, look_s
from raytwin.runtime.control.messages import NodeChanged, WorkerDied
"""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        # Copy threads: a default of its own.
        ("threads = self.client.config.store_copy_threads or 1", "setting store_copy_threads"),
        # Breaks of fetches: when one is given up.
        ("def f(config): env.after(config.stall_s, look)", "setting stall_s"),
        ("streams = config.fetch_streams if size > 7 else 1", "setting fetch_streams"),
        # Flushing in a worker.
        ("client.buffer.flush()", "batch flush"),
        # Reports of a long range.
        ("DUE_S = 0.005", "number DUE_S = 0.005"),
        # Refusal of a dead incarnation, and replicas that leave.
        ("if channel.state is State.CLOSED: close()", "state State.CLOSED"),
        ("send(messages.NodeChanged(info))", "message NodeChanged"),
        ("self.fail(fetch, 'the other side closed the connection')",
         "reason 'the other side closed the connection'"),
    ],
)  # fmt: skip
def test_a_decision_in_the_simulator_is_found(code: str, found: str, there: Facts) -> None:
    source = Source("simulator/example.py", ast.parse(IMPORTS + code))
    (line,) = decisions(source, there)
    assert line.startswith("simulator/example.py:") and line.endswith(f": {found}")


@pytest.mark.parametrize(
    "code",
    [
        "part_s = look_s(config.stall_s) / 2",  # handed to a function of the control plane
        "if self.config.chained: start_replicas()",  # which processes there are
        "send(WorkerDied(address, reason))",  # as the parent of a real process reports it
        "DUE_S = 7.0",  # another number
        '"""Fails as if the other side closed the connection."""',
        "raise TypeError('the other side closed the connection')",
        "reason = 'no link'",
    ],
)
def test_a_mechanism_in_the_simulator_is_none(code: str, there: Facts) -> None:
    assert decisions(Source("simulator/example.py", ast.parse(IMPORTS + code)), there) == []
