"""A simulated worker: client and executor in one process, and a program in a greenlet.

The program takes ranges from the executor, runs them and reports them, until it exits.
The worker makes its greenlet when it has its first range: a greenlet's stack takes the
most memory of a worker.
"""

from __future__ import annotations

import sys

from greenlet import GreenletExit

from raytwin.runtime.control.client.client import WorkerComponent
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.execution.task_execution import TaskRunner
from raytwin.runtime.execution.user_errors import exit_code
from raytwin.runtime.session.node_resources import FIRST_DRIVER
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.cluster.simulated_session import SimSession
from raytwin.simulator.machine.simulated_process import SimProcess
from raytwin.simulator.programs.virtual_world import (
    ProgramGreenlet,
    SimWorld,
    StorePort,
)


class SimWorker:
    """A worker's process, its component, and the program that it runs."""

    def __init__(
        self, cluster: ClusterPort, address: str, process: SimProcess, store: StorePort
    ) -> None:
        """`process` has reported that the worker is ready; `store` is the node's."""
        self.cluster = cluster
        self.node = node = process.node
        self._store = store
        self.process = process
        driver = FIRST_DRIVER if node == node_of(FIRST_DRIVER) else ""
        component = WorkerComponent(process.context(address), address, node, cluster.config, driver)
        self.client, self.executor = component.client, component.executor
        process.add(address, component)
        self._world: SimWorld | None = None
        self._program: ProgramGreenlet | None = None
        process.after_turn = self._begin

    @property
    def in_use(self) -> bool:
        """Whether the program computes or sleeps."""
        return self._world is not None and self._world.in_use

    def end(self) -> None:
        """End the process, and unwind its program."""
        self.process.kill()
        if self._program:
            self._program.throw()
        if self._world is not None:
            self._world.end_spawned()
        self.client.waits.forget_waiters()

    def _begin(self) -> None:
        """Make and start the program when the first range has arrived."""
        if not self.executor.queue:
            return
        world = SimWorld(self.cluster, self.process, self.client, self.executor, self._store)
        self._world = world
        session = SimSession(world, self.cluster)
        world.session = session
        runner = TaskRunner(world, session, self.executor, self.node)
        self._program = ProgramGreenlet(lambda: _live(world, runner), self.cluster)
        self._program.session = session
        self._program.switch()


def _live(world: SimWorld, runner: TaskRunner) -> None:
    """Run the worker's program, and end its process as a real one would end."""
    try:
        runner.work()
    except GreenletExit:
        raise  # the cluster has ended the process
    except BaseException as error:
        code = exit_code(error)
        world.leave(code)
        if world.is_for_driver(error):
            raise  # in the driver: the signal was sent to the real process
        if not isinstance(error, SystemExit):
            sys.__excepthook__(type(error), error, error.__traceback__)
        elif error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    else:
        world.leave()
    finally:
        # All simulated processes share the real process's environment variables.
        world.environment.leave()
