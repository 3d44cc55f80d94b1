"""The pytest plugin: a test's cluster on any of raytwin's backends, under a fault plan.

    import pytest
    import raytwin as ray

    @pytest.mark.faults("spot")
    @pytest.mark.parametrize("backend", ["sim", "local"])
    def test_my_program(raytwin_cluster, backend):
        raytwin_cluster(backend=backend)
        assert my_program() == 42

pytest imports this module at every start, so it imports nothing of raytwin's: that is left to tests
which use the fixture or the marker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from raytwin.chaos.clusters_in_tests import Clusters

MARKER = (
    "faults(plan): apply a fault plan to every raytwin cluster that the test starts. The plan is"
    " the name of a ready one ('raytwin plan' lists them), a path relative to the test's file, or"
    " data: {'steps': [...], 'expect': [...]}, or the list of steps alone. The test fails if a step"
    " was impossible or an expectation does not hold; a failing test says what the plan did."
)
STATE = "_raytwin_clusters"
"""The fixture that both the marker and `raytwin_cluster` use, and the item's attribute."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for programs that say ``import ray``."""
    parser.getgroup("raytwin").addoption(
        "--raytwin-as-ray",
        action="store_true",
        help="let 'import ray' be raytwin in this run, for programs that are written for Ray",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the name `ray` before a ``conftest.py`` imports it."""
    if not early_config.known_args_namespace.raytwin_as_ray:
        return
    from raytwin.runtime.api import modules

    if "ray" in sys.modules and sys.modules["ray"] is not sys.modules["raytwin"]:
        raise pytest.UsageError("--raytwin-as-ray comes too late: a plugin has imported Ray")
    modules.install("ray")
    os.environ[modules.AS_RAY] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests with the marker use what applies the plan, before anything starts a cluster."""
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is not None and item.get_closest_marker("faults") is not None:
            names[:] = [STATE, *(name for name in names if name != STATE)]


@pytest.fixture(name=STATE)
def _clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """The clusters of the test, and the plan of its marker."""
    from raytwin.chaos.clusters_in_tests import Clusters

    by_value = request.config.getoption("importmode") == "importlib"
    clusters = Clusters(request.path.parent, request.module if by_value else None)
    setattr(request.node, STATE, clusters)
    try:
        marker = request.node.get_closest_marker("faults")
        if marker is not None and (problem := clusters.mark(*marker.args, **marker.kwargs)):
            pytest.fail(f"the marker faults: {problem}", pytrace=False)
        yield clusters
    finally:
        clusters.close()
    if clusters.test_failed:
        return
    if wrong := clusters.failures():
        pytest.fail(f"the fault plan: {'; '.join(wrong)}", pytrace=False)
    if idle := clusters.idle():
        request.node.warn(pytest.PytestWarning(idle))


@pytest.fixture
def raytwin_cluster(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Start a raytwin cluster: ``raytwin_cluster(backend="sim", nodes=3, faults="spot")``.
    ``backend`` is ``local`` (processes on this machine, the default), ``sim`` (virtual time) or
    ``docker``; ``nodes`` their number, by default what the plan needs; ``faults`` a plan for this
    cluster, as in the marker ``faults``, which is for every cluster of the test; further options,
    such as ``cpus_per_node``, are those of ``raytwin.init``, whose result is returned. The cluster
    ends with the test, however that ends, and where the test starts another.
    """
    clusters: Clusters = request.getfixturevalue(STATE)
    return clusters.start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add to the report of a failing test what the fault plan did."""
    outcome = yield
    clusters: Clusters | None = getattr(item, STATE, None)
    if clusters is None:
        return
    report = outcome.get_result()
    if report.failed:
        clusters.test_failed = True
        if lines := clusters.lines():
            report.sections.append(("raytwin: fault plan", "\n".join(lines)))
