"""The zygote: forks every other process of the cluster, and outlives none.

The driver starts it. It loads the modules of workers once (see `preload`); a
process forked from it costs milliseconds and shares its pages. It is also the
supervisor, so that nothing remains of a cluster:

* it watches the driver's pidfd and the driver's end of the control socket; when either
  ends, it takes no further request, kills every process that it has forked and exits;
* the kernel kills every process that the zygote has forked when the zygote dies;
* processes that user code has started become children of the zygote when their worker
  dies, and it kills them then;
* sockets are socket pairs and memory is memfd, passed as descriptors, so they have
  no name in a file system. The one name is the file by which other drivers find the
  cluster, and the zygote removes it.

The first packet is ``["start", search path, cluster's file, kinds, modules]``. Processes of
these kinds follow at once, so the zygote loads their modules before it forks any; the last
list is the modules of workers. Requests (one packet each, descriptors attached)::

    ["spawn", kind, key, payload, again]  kind: head, node, replica, worker
    ["kill", key, signal]

With `again` the process is forked anew, with the same descriptors, when it is killed or
fails. It is not forked anew if it has ended `AGAIN_MAX` times within `AGAIN_S` of its start, or
with exit code 0: then nodes, which would wait for it, are killed as well.

Answers: ``["spawned", key, pid]``, except for workers; ``["exited", key, reason]``.
The requester of a process owns it: it receives its end, and may kill it. When the requester
ends, the zygote kills what it owns. The driver receives the answers for replicas too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

from raytwin.runtime.execution.user_errors import exit_code
from raytwin.runtime.processes.client import preload
from raytwin.runtime.processes.net.heap_trim import trim
from raytwin.runtime.processes.net.packets import PacketQueue, packet_pair, receive_packet
from raytwin.runtime.processes.net.process_settings import set_up_logging

MAINS = {
    "head": "raytwin.runtime.processes.head.head_process",
    "node": "raytwin.runtime.processes.node.node_process",
    "replica": "raytwin.runtime.processes.head.replica_process",
    "worker": "raytwin.runtime.processes.client.worker_process",
}
_FD_END = (1 << 31) - 1
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

AGAIN_MAX = 5
AGAIN_S = 1.0
BATCH = 16
"""How many requests of one process the zygote takes before it serves the next one."""


class Child:
    """A process that the zygote has forked."""

    __slots__ = ("again", "asks", "key", "kind", "owner", "pid", "pidfd", "started_s")

    def __init__(self, kind: str, key: str, owner: int, pid: int, pidfd: int) -> None:
        self.kind = kind
        self.key = key
        self.owner = owner
        """The socket of the process that has requested it."""
        self.pid = pid
        self.pidfd = pidfd
        self.again: tuple[list[Any], list[int]] | None = None
        """The request and descriptors to fork it anew with."""
        self.started_s = time.monotonic()
        self.asks = -1
        """The socket over which it requests processes; -1 if it does not."""


class Zygote:
    """The fork server's loop."""

    def __init__(self, control: socket.socket, driver_pid: int) -> None:
        self._epoll = select.epoll()
        self._askers: dict[int, socket.socket] = {}
        self._answers: dict[int, PacketQueue] = {}
        self._children: dict[int, Child] = {}
        """The processes that have not been reaped, by pidfd, oldest first."""
        self._control_fd = control.fileno()
        self._warm = False
        self._short_lives = 0
        self._late: list[tuple[int, list[Any], list[int]]] = []
        """Workers to fork once the modules are loaded: (requester, request, descriptors)."""
        self._due: list[tuple[int, list[Any], list[int]]] = []
        """Workers to fork now."""
        self._driver_fd = os.pidfd_open(driver_pid)
        self._driver = select.poll()
        self._driver.register(self._driver_fd, select.POLLIN)
        # Only hang-ups: the requests before them are served in turn.
        self._driver.register(self._control_fd, 0)
        self.modules: list[str] = []
        """Further modules to load for workers."""
        self.cluster_file = ""
        """The cluster's file; removed at the end, in case the driver was killed."""
        self._epoll.register(self._driver_fd, select.EPOLLIN)
        self._add_asker(control)

    def run(self) -> None:
        """Serve until the driver is gone."""
        while True:
            # Head and nodes need neither numpy nor cloudpickle: they are forked before
            # these are loaded, and start meanwhile.
            ended: list[Child] = []
            for fd, mask in self._epoll.poll(None if self._warm or not self._late else 0) or [
                (-1, 0)
            ]:
                # Checked for each: the requests of all can be hundreds of forks.
                if self._driver.poll(0):
                    return
                if fd == -1:
                    self._warm_up()
                elif fd in self._askers:
                    if mask & select.EPOLLOUT:
                        self._send_answers(fd)
                    if mask & ~select.EPOLLOUT and not self._serve(fd):
                        return
                    self._fork_workers()
                elif fd in self._children:
                    ended.append(self._children.pop(fd))
            if ended:
                self._reap(ended)

    def _warm_up(self) -> None:
        """Load the modules of workers, then fork the workers requested so far."""
        load(MAINS["worker"], "cloudpickle", *self.modules)
        import_module("raytwin.runtime.processes.spawn.rehearsal").rehearse()
        import_module("raytwin.runtime.processes.client.interrupts").catch()
        settle()
        self._warm = True
        late, self._late = self._late, []
        for fd, request, fds in late:
            if fd in self._askers:
                self._due.append((fd, request, fds))
            else:
                for unused in fds:
                    os.close(unused)
        self._fork_workers()

    def _add_asker(self, sock: socket.socket) -> None:
        self._askers[sock.fileno()] = sock
        self._answers[sock.fileno()] = PacketQueue(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _serve(self, fd: int) -> bool:
        """Take a process's requests; return False when the driver is gone."""
        for _ in range(BATCH):
            try:
                packet = receive_packet(self._askers[fd], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                packet = None
            if packet is None:
                if fd == self._control_fd:
                    return False
                self._fork_workers()
                self._drop_asker(fd)
                return True
            request, fds = packet
            if request[:2] == ["spawn", "worker"]:
                (self._due if self._warm else self._late).append((fd, request, fds))
            else:
                self._fork_workers()
                self._do(fd, request, fds)
        return True

    def _do(self, fd: int, request: list[Any], fds: list[int]) -> None:
        """Serve one request, except for workers."""
        if request[0] == "kill":
            for child in self._children.values():
                if child.key == request[1] and child.owner == fd:
                    signal.pidfd_send_signal(child.pidfd, request[2])
        else:
            self._spawn(fd, request, fds)

    def _drop_asker(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._answers[fd]
        self._askers.pop(fd).close()
        # Forget the descriptor: its number may be used again.
        for child in self._children.values():
            if child.owner == fd:
                child.owner = -1
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            elif child.asks == fd:
                child.asks = -1

    def _fork_workers(self) -> None:
        """Fork the workers that are due, then enter them all in `_children`.

        After each fork, a page that this process writes to is copied: so it writes little
        between the forks.
        """
        due, self._due = self._due, []
        if not due:
            return
        missing = preload.missing()
        if missing:
            load(*missing)
            settle()
        sys.stdout.flush()
        sys.stderr.flush()
        zygote_pid = os.getpid()
        pids = []
        for _, request, fds in due:
            pid = os.fork()
            if pid == 0:
                become("worker", request[2], request[3], fds, zygote_pid)
            pids.append(pid)
        for pid, (asker, request, fds) in zip(pids, due, strict=True):
            for fd in fds:
                os.close(fd)
            child = Child("worker", request[2], asker, pid, os.pidfd_open(pid))
            self._children[child.pidfd] = child
            self._epoll.register(child.pidfd, select.EPOLLIN)

    def _spawn(self, asker: int, request: list[Any], fds: list[int]) -> None:
        _, kind, key, payload = request[:4]
        kept = [os.dup(fd) for fd in fds] if len(request) > 4 and request[4] else None
        ours = theirs = None
        if kind in ("node", "head"):
            # A node requests workers, the head replicas, over a socket of its own.
            ours, theirs = packet_pair()
            fds = [theirs.fileno(), *fds]
        sys.stdout.flush()
        sys.stderr.flush()
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(kind, key, payload, fds, zygote_pid)
        if ours is not None and theirs is not None:
            theirs.close()
            fds = fds[1:]
            self._add_asker(ours)
        for fd in fds:
            os.close(fd)
        child = Child(kind, key, asker, pid, os.pidfd_open(pid))
        if ours is not None:
            child.asks = ours.fileno()
        self._children[child.pidfd] = child
        self._epoll.register(child.pidfd, select.EPOLLIN)
        if kept is not None:
            child.again = (request, kept)
        self._tell(child, ["spawned", key, pid])

    def _reap(self, ended: list[Child]) -> None:
        """Reap processes that have ended, kill their orphans, and report to their requesters."""
        reasons = []
        for child in ended:
            self._epoll.unregister(child.pidfd)
            _, status = os.waitpid(child.pid, 0)
            os.close(child.pidfd)
            code = os.waitstatus_to_exitcode(status)
            reasons.append(
                f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            )
        # Once for all of them: this reads the list of all child processes.
        _end_all_but({child.pid for child in self._children.values()})
        for child, reason in zip(ended, reasons, strict=True):
            if child.again is None:
                self._tell(child, ["exited", child.key, reason])
            elif reason == "exit code 0" or not self._begin_again(child):
                self._tell(child, ["exited", child.key, reason])
                # Nodes would wait for a new head.
                for other in self._children.values():
                    if other.kind == "node":
                        signal.pidfd_send_signal(other.pidfd, signal.SIGKILL)

    def _begin_again(self, child: Child) -> bool:
        """Fork a process anew that has ended; return False if it ends too often."""
        assert child.again is not None
        request, fds = child.again
        if time.monotonic() - child.started_s < AGAIN_S:
            self._short_lives += 1
            if self._short_lives >= AGAIN_MAX:
                return False
        else:
            self._short_lives = 0
        if child.asks >= 0:
            self._drop_asker(child.asks)
        self._spawn(child.owner, request, fds)
        return True

    def _tell(self, child: Child, packet: list[Any]) -> None:
        self._answer(child.owner, packet)
        if child.kind == "replica":
            self._answer(self._control_fd, packet)

    def _answer(self, asker: int, packet: list[Any]) -> None:
        answers = self._answers.get(asker)
        if answers is not None:
            answers.send(packet)
            self._send_answers(asker)

    def _send_answers(self, asker: int) -> None:
        answers = self._answers[asker]
        answers.flush()
        more = select.EPOLLOUT if answers else 0
        self._epoll.modify(asker, select.EPOLLIN | more)

    def end(self) -> None:
        """Kill every process and wait until it is gone."""
        if self.cluster_file:
            with suppress(FileNotFoundError):
                os.unlink(self.cluster_file)
        # In this order, or nodes would log the end of the head, and the head that of replicas.
        for kinds in (("worker", "node"), ("head",), ("replica",)):
            children = [child for child in self._children.values() if child.kind in kinds]
            for child in children:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            for child in children:
                os.waitpid(child.pid, 0)
        _end_all_but(set())


def _end_all_but(known: set[int]) -> None:
    """Kill every child of this process but the known ones, and the orphans that they leave."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        pids = [int(pid) for pid in file.read().split()]
    for pid in pids:
        if pid not in known:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            # The children of the killed process are children of this one now.
            _end_all_but(known)
            return


# -- before and after a fork --------------------------------------------------


def load(*modules: str) -> None:
    """Load modules for the processes to fork; the caller has to call `settle` next."""
    gc.disable()
    for module in modules:
        import_module(module)


def settle() -> None:
    """Prepare this process's memory for being shared with the processes that it forks."""
    gc.collect()
    gc.enable()  # `load` disables it, since it slows imports down
    # Shared pages stay shared: the collector does not write to old objects.
    gc.freeze()
    trim()  # or every process would have the free heap pages that imports leave


def call_process(name: str) -> None:
    """Give this process a name; the system keeps 15 bytes of it."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def adopt() -> None:
    """Become the parent of all orphans among this process's descendants."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that has forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent died before the line above


def become(kind: str, key: str, payload: bytes, fds: list[int], zygote_pid: int) -> None:
    """Run the requested kind of process in a freshly forked one; never returns."""
    code = 1
    try:
        end_with(zygote_pid)
        call_process(f"rt-{key}")
        # By ranges: the zygote has a descriptor for every process that it has forked.
        after = 3
        for fd in sorted(fds):
            os.closerange(after, fd)
            after = fd + 1
        os.closerange(after, _FD_END)
        import_module(MAINS[kind]).main(payload, fds)
        code = 0
    except SystemExit as leaving:
        code = exit_code(leaving)
        if leaving.code is not None and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)  # as Python does
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Run the zygote: descriptor and driver's PID are the arguments."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C is for the driver, which ends the cluster when it leaves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_up_logging("zygote")
    # Line buffering shows a task's output at once: a killed worker cannot flush.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    call_process("rt-zygote")
    adopt()
    started = receive_packet(control)
    if started is None:
        return
    sys.path[:] = started[0][1]
    gc.disable()
    for kind in started[0][3]:
        import_module(MAINS[kind])
    settle()  # for head and nodes, as `_warm_up` does for workers
    zygote = Zygote(control, int(sys.argv[2]))
    zygote.cluster_file, zygote.modules = started[0][2], started[0][4]
    try:
        zygote.run()
    finally:
        zygote.end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the interpreter's orderly exit would take longer than all of the above


if __name__ == "__main__":
    main()
