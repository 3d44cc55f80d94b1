"""Drivers in virtual time: the calling program, and further drivers.

The program that started the cluster is its first driver. A further driver is a program in a
greenlet, with a process and a job of its own. Node 0 admits it, as in the real runtime, and it
makes progress while the first driver waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from greenlet import GreenletExit, getcurrent

from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.core.ids import job_id
from raytwin.runtime.control.messages import JobEnded, JobInfo, RegisterJob
from raytwin.runtime.control.node.admission import Admission
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.cluster.simulated_session import SimSession
from raytwin.simulator.programs.virtual_world import ProgramGreenlet, SimWorld


class SimDriver:
    """A further driver: a program in a greenlet of its own, and its process."""

    def __init__(self, cluster: ClusterPort, program: Callable[[], object], namespace: str) -> None:
        self._cluster = cluster
        self._program = program
        self._namespace = namespace
        self._world: SimWorld | None = None
        self._greenlet: ProgramGreenlet | None = None
        self.job = 0
        """The number of its job; 0 until the GCS has given it one."""
        self.done = False
        """Whether the program has ended, or the driver was killed."""
        self.value: object = None
        """The program's return value."""
        self.error: BaseException | None = None
        """The error that the program raised."""
        cluster.admission.component.register(JobInfo(0), self)

    def wait(self) -> object:
        """Wait until the program has ended; return its value, or raise its error."""
        self._cluster.run_until(lambda: self.done, True)
        if self.error is not None:
            raise self.error
        return self.value

    def kill(self) -> None:
        """End the driver at once, and unwind its program."""
        if not self.done:
            self.done = True
            if self._world is not None:
                # In an event of its own: the program may run within a turn of its process.
                self._cluster.env.after(0, partial(self._leave, "killed by SIGKILL"))
            if self._greenlet is not None and self._greenlet is not getcurrent():
                self._greenlet.throw()

    def refuse(self, reason: str) -> None:
        """The cluster does not admit the driver."""
        self.done, self.error = True, RaySystemError(f"cannot join: {reason}")

    def welcome(self, info: JobInfo) -> None:
        """The cluster has admitted the driver: begin its program."""
        if self.done:
            self._cluster.admission.ended(info.number, "it left before it was admitted")
            return
        self.job = info.number
        self._world = self._cluster.make_driver(info.driver, job_id(info.number))
        session = SimSession(self._world, self._cluster, lambda: self._end("shut down"))
        self._world.session = session
        self._world.end = self._die
        self._greenlet = ProgramGreenlet(self._run, self._cluster)
        self._greenlet.session = session
        self._cluster.env.after(0, self._begin)

    def _begin(self) -> None:
        if self._greenlet is not None and not self.done:
            self._greenlet.switch()

    def _run(self) -> None:
        assert self._world is not None and self._world.session is not None
        watcher = self._world.watcher
        try:
            self._world.session.describe_job(self._namespace)
            if watcher is not None:
                watcher.begin()
            self.value = self._program()
            if watcher is not None:
                watcher.end()
        except GreenletExit:
            pass  # `kill` has ended the driver already
        except BaseException as error:
            self.error = error
        finally:
            self._end("its program has ended")

    def _end(self, reason: str) -> None:
        """End the driver in good order, once its last frames have left."""
        if self.done:
            return
        self.done = True
        if self._world is not None:
            left = partial(self._leave, reason)
            self._cluster.env.after(0, partial(self._world.process.when_sent, left))

    def _die(self, reason: str) -> None:
        """End the driver, whose program has ended the process at once (`os._exit`, a signal)."""
        self.done = True
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        assert self._world is not None
        self._world.process.kill()
        self._world.client.waits.forget_waiters()
        self._cluster.admission.ended(self.job, reason)


class SimAdmission:
    """Connects drivers with node 0, once `Admission` admits them."""

    def __init__(self, cluster: ClusterPort) -> None:
        self._cluster = cluster
        self.component: Admission[SimDriver] = Admission(self)

    def ended(self, job: int, reason: str) -> None:
        """Report the end of a driver and its job to node 0."""
        # The node receives the driver's last frames before it learns of its end.
        self._cluster.network.send(0, 0, 0, partial(self.component.ended, job, reason))

    # -- called by the component -----------------------------------------------------

    def report(self, message: RegisterJob | JobEnded) -> None:
        self._cluster.processes["node:0"].arrive("admission:0", "node:0", [message])

    def welcome(self, driver: SimDriver, info: JobInfo) -> None:
        driver.welcome(info)

    def refuse(self, driver: SimDriver, reason: str) -> None:
        driver.refuse(reason)
