"""The zygote: forks every other process of the cluster, and ends them with itself.

The driver starts it. It loads the modules of workers once (see `preload`); a
process forked from it costs milliseconds and shares its pages. It is also the
supervisor, so that nothing remains of a cluster:

* it watches the driver's pidfd and the driver's end of the control socket; when the
  driver ends or closes the socket, the zygote kills every process it has forked and exits;
* the kernel kills every process that the zygote has forked when the zygote dies;
* processes that user code has started become children of the zygote when their worker
  dies, and the zygote kills them then;
* sockets are socket pairs and memory is memfd, passed as descriptors, so they have
  no name in a file system. The one name is the file by which other drivers find the
  cluster, and the zygote removes it.

The first packet is ``["start", search path, cluster's file, kinds, modules]``. Requests for
these kinds of processes follow at once, so the zygote loads their modules before it forks
any; the last list is the modules of workers. Requests (one packet each, descriptors attached)::

    ["spawn", kind, key, payload, restart]  kind: head, node, replica, worker
    ["kill", key, signal]

With `restart` the zygote forks the process again, with the same descriptors, when it is killed
or fails. It gives up if the process exits with code 0, or has ended `RESTARTS_MAX` times
in a row within `RESTART_S` of its start; then it kills the nodes, which would wait for it.

Answers: ``["spawned", key, pid]``, except for workers; ``["exited", key, reason]``.
The requester of a process owns it: it is notified when the process ends, and may kill it. When
a requester ends, the zygote kills the processes it owns. The driver receives the answers for
replicas too, and the head the ends of nodes: ``["exited", key, reason, how often it was started]``.
Nodes end with a head that does not come back.
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
from collections import Counter
from contextlib import suppress
from importlib import import_module
from typing import Any

from raytwin.runtime.execution.user_errors import exit_code
from raytwin.runtime.processes.client import blas_threads, preload
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

RESTARTS_MAX = 5
RESTART_S = 1.0
BATCH = 16
"""How many requests of one requester the zygote serves before it serves the next one."""


class Child:
    """A process that the zygote has forked."""

    __slots__ = ("key", "kind", "owner", "pid", "pidfd", "requests_fd", "restart", "started_s",
                 "starts")  # fmt: skip

    def __init__(
        self, kind: str, key: str, owner: int, pid: int, pidfd: int, starts: int = 1
    ) -> None:
        self.kind = kind
        self.key = key
        self.owner = owner
        """The socket of its requester."""
        self.pid = pid
        self.pidfd = pidfd
        self.restart: tuple[list[Any], list[int]] | None = None
        """The request and descriptors of a process to restart; None for any other."""
        self.started_s = time.monotonic()
        self.starts = starts
        """How often a process of this key was started."""
        self.requests_fd = -1
        """The socket over which it requests processes; -1 if it does not."""


class Zygote:
    """The fork server's loop."""

    def __init__(self, control: socket.socket, driver_pid: int) -> None:
        self._epoll = select.epoll()
        self._requesters: dict[int, socket.socket] = {}
        self._answers: dict[int, PacketQueue] = {}
        self._children: dict[int, Child] = {}
        """The processes that have not been reaped, by pidfd, oldest first."""
        self._control_fd = control.fileno()
        self._starts: Counter[str] = Counter()
        """By key, but not of workers."""
        self._warm = False
        self._quick_ends = 0
        self._postponed: list[tuple[int, list[Any], list[int]]] = []
        """Workers to fork once the modules are loaded: (requester, request, descriptors)."""
        self._due: list[tuple[int, list[Any], list[int]]] = []
        """Workers to fork now."""
        self._driver_fd = os.pidfd_open(driver_pid)
        self._driver = select.poll()
        self._driver.register(self._driver_fd, select.POLLIN)
        # Only hang-ups: requests that have arrived before are served in turn.
        self._driver.register(self._control_fd, 0)
        self.modules: list[str] = []
        """Further modules to load for workers."""
        self.cluster_file = ""
        """The cluster's file, which the zygote removes in case the driver was killed."""
        self._epoll.register(self._driver_fd, select.EPOLLIN)
        self._add_requester(control)

    def run(self) -> None:
        """Serve until the driver has ended."""
        while True:
            # Head and nodes need neither numpy nor cloudpickle: they are forked before the
            # zygote loads these, and start meanwhile.
            ended: list[Child] = []
            for fd, mask in self._epoll.poll(None if self._warm or not self._postponed else 0) or [
                (-1, 0)
            ]:
                # Checked for each event: all events together can be hundreds of forks.
                if self._driver.poll(0):
                    return
                if fd == -1:
                    self._warm_up()
                elif fd in self._requesters:
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
        warm_up(*self.modules)
        self._warm = True
        postponed, self._postponed = self._postponed, []
        for fd, request, fds in postponed:
            if fd in self._requesters:
                self._due.append((fd, request, fds))
            else:
                for unused in fds:
                    os.close(unused)
        self._fork_workers()

    def _add_requester(self, sock: socket.socket) -> None:
        self._requesters[sock.fileno()] = sock
        self._answers[sock.fileno()] = PacketQueue(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _serve(self, fd: int) -> bool:
        """Serve a process's requests; return False once the driver has ended."""
        for _ in range(BATCH):
            try:
                packet = receive_packet(self._requesters[fd], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                packet = None
            if packet is None:
                if fd == self._control_fd:
                    return False
                self._fork_workers()
                self._drop_requester(fd)
                return True
            request, fds = packet
            if request[:2] == ["spawn", "worker"]:
                (self._due if self._warm else self._postponed).append((fd, request, fds))
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

    def _drop_requester(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._answers[fd]
        self._requesters.pop(fd).close()
        # No child may keep the descriptor: its number may be used again.
        for child in self._children.values():
            if child.owner == fd:
                child.owner = -1
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            elif child.requests_fd == fd:
                child.requests_fd = -1

    def _fork_workers(self) -> None:
        """Fork the workers that are due, then enter them all in `_children`.

        After a fork the kernel copies each page that this process writes to, so it writes
        little between the forks.
        """
        due, self._due = self._due, []
        if not due:
            return
        missing = preload.missing()
        if missing:
            load(*missing)
            share_memory()
        sys.stdout.flush()
        sys.stderr.flush()
        zygote_pid = os.getpid()
        pids = []
        for _, request, fds in due:
            pid = os.fork()
            if pid == 0:
                become("worker", request[2], request[3], fds, zygote_pid)
            pids.append(pid)
        for pid, (requester, request, fds) in zip(pids, due, strict=True):
            for fd in fds:
                os.close(fd)
            child = Child("worker", request[2], requester, pid, os.pidfd_open(pid))
            self._children[child.pidfd] = child
            self._epoll.register(child.pidfd, select.EPOLLIN)

    def _spawn(self, requester: int, request: list[Any], fds: list[int]) -> None:
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
            self._add_requester(ours)
        for fd in fds:
            os.close(fd)
        self._starts[key] += 1
        child = Child(kind, key, requester, pid, os.pidfd_open(pid), self._starts[key])
        if ours is not None:
            child.requests_fd = ours.fileno()
        self._children[child.pidfd] = child
        self._epoll.register(child.pidfd, select.EPOLLIN)
        if kept is not None:
            child.restart = (request, kept)
        self._notify(child, ["spawned", key, pid])

    def _reap(self, ended: list[Child]) -> None:
        """Reap processes that have ended, kill their orphans, and report to their requesters."""
        codes = []
        for child in ended:
            self._epoll.unregister(child.pidfd)
            _, status = os.waitpid(child.pid, 0)
            os.close(child.pidfd)
            codes.append(os.waitstatus_to_exitcode(status))
        # Once for all that have ended: this reads the list of all child processes.
        _kill_all_but({child.pid for child in self._children.values()})
        for child, code in zip(ended, codes, strict=True):
            reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            if child.restart is not None and code != 0 and self._restart(child):
                continue
            self._notify(child, ["exited", child.key, reason])
            if child.kind == "node":
                self._notify_head(["exited", child.key, reason, child.starts])
            elif child.kind == "head":
                # Nodes would wait for the head to answer.
                for other in self._children.values():
                    if other.kind == "node":
                        signal.pidfd_send_signal(other.pidfd, signal.SIGKILL)

    def _notify_head(self, packet: list[Any]) -> None:
        for child in self._children.values():
            if child.kind == "head":
                self._answer(child.requests_fd, packet)

    def _restart(self, child: Child) -> bool:
        """Restart a process that has ended; return False if it ends too often."""
        assert child.restart is not None
        request, fds = child.restart
        if time.monotonic() - child.started_s < RESTART_S:
            self._quick_ends += 1
            if self._quick_ends >= RESTARTS_MAX:
                return False
        else:
            self._quick_ends = 0
        if child.requests_fd >= 0:
            self._drop_requester(child.requests_fd)
        self._spawn(child.owner, request, fds)
        return True

    def _notify(self, child: Child, packet: list[Any]) -> None:
        self._answer(child.owner, packet)
        if child.kind == "replica":
            self._answer(self._control_fd, packet)

    def _answer(self, requester: int, packet: list[Any]) -> None:
        answers = self._answers.get(requester)
        if answers is not None:
            answers.send(packet)
            self._send_answers(requester)

    def _send_answers(self, requester: int) -> None:
        answers = self._answers[requester]
        answers.flush()
        more = select.EPOLLOUT if answers else 0
        self._epoll.modify(requester, select.EPOLLIN | more)

    def end(self) -> None:
        """Kill every process and wait for its end."""
        if self.cluster_file:
            with suppress(FileNotFoundError):
                os.unlink(self.cluster_file)
        # In this order, or nodes would log the end of the head, and the head the replicas' ends.
        for kinds in (("worker", "node"), ("head",), ("replica",)):
            children = [child for child in self._children.values() if child.kind in kinds]
            for child in children:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            for child in children:
                os.waitpid(child.pid, 0)
        _kill_all_but(set())


def _kill_all_but(known: set[int]) -> None:
    """Kill every child of this process but the known ones, and the orphans that they leave."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        pids = [int(pid) for pid in file.read().split()]
    for pid in pids:
        if pid not in known:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            # The children of the killed process are children of this one now.
            _kill_all_but(known)
            return


# -- before and after a fork --------------------------------------------------


def warm_up(*modules: str) -> None:
    """Prepare for forking workers, with these further modules loaded."""
    load(MAINS["worker"], "cloudpickle", *modules)
    import_module("raytwin.runtime.processes.spawn.rehearsal").rehearse()
    import_module("raytwin.runtime.processes.client.interrupts").catch()
    share_memory()


def load(*modules: str) -> None:
    """Load modules for the processes to fork; the caller has to call `share_memory` next."""
    gc.disable()
    for module in modules:
        import_module(module)
    if not os.environ.keys() & set(blas_threads.VARIABLES):
        blas_threads.find()


def share_memory() -> None:
    """Prepare this process's memory for sharing with the processes that it forks."""
    gc.collect()
    gc.enable()  # `load` disables it, since it slows imports down
    # The collector does not write to frozen objects, so their pages stay shared.
    gc.freeze()
    trim()  # or every process would inherit the free heap pages that imports leave


def name_process(name: str) -> None:
    """Give this process a name, of which the system keeps 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def become_subreaper() -> None:
    """Become the parent of all orphans among this process's descendants."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent's forking thread ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent died before the line above


def become(kind: str, key: str, payload: bytes, fds: list[int], zygote_pid: int) -> None:
    """Turn a freshly forked process into the requested kind, and run it; never returns."""
    code = 1
    try:
        die_with(zygote_pid)
        name_process(f"rt-{key}")
        # Close all others, by ranges: the zygote has a descriptor for every process it forked.
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
    """Run the zygote; its arguments are the control socket's descriptor and the driver's PID."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C interrupts the driver, which ends the cluster when it exits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_up_logging("zygote")
    # Line buffering shows a task's output at once: a killed worker cannot flush.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    name_process("rt-zygote")
    become_subreaper()
    started = receive_packet(control)
    if started is None:
        return
    sys.path[:] = started[0][1]
    gc.disable()
    for kind in started[0][3]:
        import_module(MAINS[kind])
    share_memory()  # for head and nodes, as `_warm_up` does for workers
    zygote = Zygote(control, int(sys.argv[2]))
    zygote.cluster_file, zygote.modules = started[0][2], started[0][4]
    try:
        zygote.run()
    finally:
        zygote.end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the interpreter's regular exit would take longer than all of the above


if __name__ == "__main__":
    main()
