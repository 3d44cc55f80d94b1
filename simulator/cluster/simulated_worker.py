"""A simulated worker: client and executor in one process, and a program in a greenlet.

The program takes ranges from the executor, runs them and reports them, until it exits.
The worker makes its greenlet when it has its first range: a greenlet's stack takes the
most memory of a worker.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from typing import Any

from greenlet import GreenletExit

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.messages import (
    CancelTask,
    DirectCall,
    Exit,
    FunctionBlob,
    GrantGpus,
    RestoreActor,
    Resume,
    RunTasks,
    TakeBack,
)
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.task_execution import TaskRunner
from raytwin.runtime.execution.user_errors import exit_code
from raytwin.runtime.session.futures import LazyFuture, settled_item
from raytwin.runtime.session.node_resources import FIRST_DRIVER
from raytwin.runtime.session.session import Session
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.machine.simulated_process import SimProcess
from raytwin.simulator.programs.virtual_world import (
    ProgramGreenlet,
    SimWorld,
    StorePort,
    VirtualEventLoop,
)

_FOR_EXECUTOR = frozenset(
    (
        RunTasks,
        FunctionBlob,
        TakeBack,
        Resume,
        RestoreActor,
        Exit,
        CancelTask,
        DirectCall,
        GrantGpus,
    )
)


class SimWorkerSession(Session):
    """A simulated worker's session."""

    def future(self, ref: ObjectRef) -> Future[Any]:
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualEventLoop):
            return loop.future_of(ref)
        return LazyFuture(self, ref)

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualEventLoop):
            return loop.future_of_item(array, index)
        return settled_item(self, array, index)


class SimWorker:
    """The component at a worker's address: passes each message to the client or the executor."""

    def __init__(
        self, cluster: ClusterPort, address: str, process: SimProcess, store: StorePort
    ) -> None:
        """`process` has reported that the worker is ready; `store` is the node's."""
        self.cluster = cluster
        self.node = node = process.node
        self._store = store
        self.process = process
        ctx = process.context(address)
        self.client = Client(ctx, address, node, cluster.config)
        self.executor = Executor(ctx, node, cluster.config)
        if node == node_of(FIRST_DRIVER):
            self.executor.direct.driver = FIRST_DRIVER
            self.executor.direct.effects = lambda: self.client.buffer.effects
        process.add(address, self)
        self._world: SimWorld | None = None
        self._program: ProgramGreenlet | None = None
        self.executor.on_cancel = self._on_cancel
        process.after_turn = self._begin

    @property
    def in_use(self) -> bool:
        """Whether the program computes or sleeps."""
        return self._world is not None and self._world.in_use

    def handle(self, source: str, message: Any) -> None:
        if type(message) in _FOR_EXECUTOR:
            self.executor.handle(source, message)
        else:
            self.client.handle(source, message)

    def _on_cancel(self, message: CancelTask) -> None:
        running = self.executor.running
        if message.recursive and running is not None:
            self.client.submitter.cancel_children(
                task_id(running.array, self.executor.cancelled), message.force
            )

    def end_turn(self) -> None:
        """Do nothing: neither part has work at the end of a turn."""

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
        session = SimWorkerSession(world)
        world.session = session
        runner = TaskRunner(world, session, self.executor, self.node)
        self._program = ProgramGreenlet(
            lambda: _live(world, session, self.executor, runner), self.cluster
        )
        self._program.session = session
        self._program.switch()


def _live(world: SimWorld, session: Session, executor: Executor, runner: TaskRunner) -> None:
    """Run the worker's program, and end its process as a real one would end."""
    try:
        _work(world, session, executor, runner)
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


def _work(world: SimWorld, session: Session, executor: Executor, runner: TaskRunner) -> None:
    """Run ranges until the worker may exit."""
    client = world.client
    while not runner.may_leave():
        with world:
            begins = runner.has_room() and not executor.exiting
            assignment = executor.next() if begins else None
            if assignment is None:
                session.references.collect()
                client.buffer.flush()
        if assignment is not None:
            runner.run(assignment)
        else:
            world.block(lambda: runner.has_work() or runner.may_leave(), None)
    runner.end()
    with world:
        client.buffer.flush()
