"""What holds for every test: reproducible draws, and nothing left running.

- A test that takes `seed` gets a number of its own, the same in every run;
  ``RAYTWIN_TEST_SEED=N`` replaces it. A failing one says which seed it had.
- Hypothesis draws the same examples in every run under CI and fresh ones elsewhere.
- A test that starts processes of raytwin's has the marker `real`, without being told so one by one;
  of a test of many seeds all after the first few have the marker `slow`.
- When the session ends, every process that a test started must be gone, whoever
  its parent is by then; the error names the test.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
SESSION_VARIABLE = "RAYTWIN_TEST_SESSION"
GRACE_S = 10.0
"""How long processes that were told to leave may take."""

settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None)
settings.register_profile("dev", print_blob=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# A shell starts what is to run in the background with SIGINT ignored, and nohup what is to outlive
# it with SIGHUP; children would inherit that: tests send both to them.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


REAL_FOLDERS = ("benchmarks", "containers", "examples", "processes", "scenarios")
"""Folders of tests most of which start processes."""
FAST_SEEDS = 10
"""How many seeds of a test belong to the fast layer."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes as `real`: the tests of some folders, and those for `local`."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if (
            item.path.relative_to(TESTS).parts[0] in REAL_FOLDERS
            or any(isinstance(value, str) and value == "local" for value in params.values())
            or "local" in getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.real)
        if params.get("seed", 0) >= FAST_SEEDS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that is the test's own and does not change from run to run."""
    return int(os.environ.get("RAYTWIN_TEST_SEED", zlib.crc32(request.node.nodeid.encode())))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Add the seed of a failed test to its report, where its name does not tell it."""
    report = yield
    drawn = getattr(item, "funcargs", {}).get("seed")
    parametrized = "seed" in getattr(getattr(item, "callspec", None), "params", {})
    if report.failed and drawn is not None and not parametrized:
        report.sections.append(("seed", f"again: RAYTWIN_TEST_SEED={drawn} pytest '{item.nodeid}'"))
    return report


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail the session if a process that it started outlives it."""
    # Children inherit the environment, and keep it when their parent dies.
    mark = uuid4().hex
    os.environ[SESSION_VARIABLE] = mark
    yield
    deadline = time.monotonic() + GRACE_S
    while (left := started_by(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "processes outlive the tests:\n" + "\n".join(map(describe, left))


def started_by(mark: str) -> list[psutil.Process]:
    """Return the living processes, without this one, whose session is `mark`."""
    own = set(psutil.Process().children(recursive=True))
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process in own or process.environ().get(SESSION_VARIABLE) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # Gone meanwhile, or another user's: not left by us.
    return [process for process in found if not is_helper(process)]


def is_helper(process: psutil.Process) -> bool:
    """Whether `process` is the standard library's own, which leaves with this one."""
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True


def describe(process: psutil.Process) -> str:
    """Return one line on `process`: what it is, and the test that started it."""
    try:
        test = process.environ().get("PYTEST_CURRENT_TEST", "unknown, forked")
        return f"  {process.pid} {' '.join(process.cmdline())[:160]} (started in {test})"
    except psutil.Error as gone:
        return f"  {process.pid}: {gone}"
