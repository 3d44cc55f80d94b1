"""The clusters of one test, under fault plans: what the pytest plugin does once a test asks for it.

`raytwin_pytest`, which pytest imports at every start, has the fixtures and the marker; it imports
this module for a test that uses them. The module knows nothing of pytest: `Clusters` is closed when
the test is over, says what the plans did, and what a test must not pass with.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from raytwin.chaos.faults.plan import Plan, PlanError
from raytwin.chaos.faults.plan_files import read
from raytwin.chaos.faults.recovery_summary import Recovery, impossible, observed
from raytwin.runtime.api import lifecycle, modules
from raytwin.runtime.api.backend import Backend, connected


class Clusters:
    """The clusters that a test starts, one after the other, and what became of them."""

    def __init__(self, folder: Path, module: ModuleType | None = None) -> None:
        """Paths of plans are relative to `folder`.

        The functions of `module` travel by value: a test's, where workers cannot import it.
        Raises ValueError in a process that is on Ray.
        """
        if modules.on_ray():
            raise ValueError(f"raytwin starts no cluster in a process on Ray ({modules.ON_RAY})")
        self.recoveries: list[Recovery] = []
        self.test_failed = False
        self._folder = folder
        self._marked: Plan | None = None
        self._stack = ExitStack()
        self._cluster_stack = ExitStack()
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
            self._stack.callback(cloudpickle.unregister_pickle_by_value, module)

    def mark(self, *plan: Any, **named: Any) -> str:
        """Apply a plan to each cluster that starts from now on, by whatever means.

        Returns what is wrong with it, in a line; "" if nothing is.
        """
        if len(plan) != 1 or named:
            return "it takes one plan, as in faults('spot')"
        try:
            self._marked = self._read(plan[0])
        except PlanError as error:
            return str(error)
        self.recoveries = self._stack.enter_context(observed(self._marked))
        return ""

    def start(
        self, backend: str = "local", nodes: Any = None, faults: Any = None, **options: Any
    ) -> Backend:
        """End the cluster before, start one, and apply a plan to it; return the session.

        `nodes` None is what the plan needs. Raises PlanError for what is no plan, or none for the
        backend, and what `init` raises.
        """
        self._cluster_stack.close()
        if faults is not None and self._marked is not None:
            raise PlanError("the test has a plan in its mark faults: leave out one of the two")
        given = self._read(faults) if faults is not None else None
        plan = given or self._marked or Plan()
        plan.check_backend(backend)
        needed = plan.nodes()
        if isinstance(nodes, int) and nodes < needed:
            raise PlanError(f"the plan names node {needed - 1}: give nodes={needed} or more, or"
                            " leave it out")  # fmt: skip
        if given is not None:
            # Its list has this cluster alone, and the test's those of all.
            found = self._cluster_stack.enter_context(observed(given))
        made = lifecycle.init(
            "local", backend=backend, nodes=needed if nodes is None else nodes, **options
        )
        self._cluster_stack.callback(_end, made)
        if given is not None:
            self.recoveries += found
        return made

    def close(self) -> None:
        """End the cluster, and the plans."""
        with self._stack:
            self._cluster_stack.close()

    def _read(self, faults: Any) -> Plan:
        """Return a plan. Raises PlanError."""
        if isinstance(faults, Path) or (isinstance(faults, str) and re.search(r"[./]", faults)):
            return read(self._folder / faults)
        return read(faults)

    # -- what became of them -------------------------------------------------------

    def lines(self) -> list[str]:
        """Return what the plans have done so far, and how the clusters took it, a line each.

        It is empty where there is no plan.
        """
        lines = []
        for number, each in enumerate(self.recoveries, start=1):
            each.look()
            if len(self.recoveries) > 1:
                lines.append(f"cluster {number}:")
            lines += each.lines()
            lines += [
                f"{'holds' if found.ok else 'FAILS'} {found.name}: {found.detail}"
                for found in each.check({})
            ]
        if self._marked is not None and not lines:
            lines.append("the test has started no cluster: no fault hit it")
        return lines

    def failures(self) -> list[str]:
        """Return what a test must not pass with: steps that were impossible, unmet expectations."""
        found = []
        for each in self.recoveries:
            found += impossible(each.plan, [each])
            found += [f"{f.name} does not hold: {f.detail}" for f in each.check({}) if not f.ok]
        return found

    def idle(self) -> str:
        """Return which plan has done nothing, if one has: its test tests no fault."""
        if self._marked is not None and not self.recoveries:
            return "the fault plan has done nothing: the test has started no cluster"
        for each in self.recoveries:
            if each.plan.steps and not each.injections:
                first = each.plan.steps[0].sentence()
                return f"the fault plan has done nothing: the cluster ended before it. {first}"
        return ""


def _end(made: Backend) -> None:
    """End a cluster, unless the test has done so."""
    if connected() is made:
        lifecycle.shutdown()
