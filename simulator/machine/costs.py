"""Costs in virtual time: a profile of one kind of machine.

The control plane's own code decides what a turn does; the profile states how long the turn
takes on the modelled machine, and how fast that machine's network, memory and disk are.

A turn of a process costs::

    turn_s                             wake up, poll, sleep again
    + cold_s    x sqrt(rest / REST_MAX_S)
                                       for each code path that it runs, for its rest since that ran
                                       last, `REST_MAX_S` at most: it has left the caches. Of the
                                       time in which the core has run others a part counts
                                       (`busy_rest`)
    + frame_s   x frames sent          a system call each
    + for each message received or sent:
        message_s                      to decode or encode and to handle it
        + range_s   x its ranges       (of tasks or results, and inputs of tasks by reference;
                                        a message of none of them counts as one, but those
                                        of a chain, which carry others)
        + element_s x its elements
        + byte_s    x its bytes

The frames leave `after_s` before the turn is over: after the write to a socket the
writer still cleans up, while the reader wakes up already.

Code paths are the turn itself, the handling of each type of message received, and of each sent (of
those within a chain's request, the request alone); of a program, each kind of API call, and of what
such a call packs or unpacks. A rest lasts from one use of a path to the next, whatever ran
meanwhile, the process itself included.

A request to a chain of the GCS costs as much as the messages in it, at every replica
that applies it.

Each role (``head``, ``node``, ``worker``, ``driver``) has figures of its own, and may
have others for a type of message. User code costs ``call_s`` per API call and
``task_s`` per task that a worker runs, besides the time that it computes.

A profile is a JSON object with the fields below. ``paper`` is built in, see
`profiles/paper.json`; `raytwin calibrate` writes one for the machine at hand.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from math import ceil, inf, log, sqrt
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import astuple

from raytwin.runtime.control.core.call_batches import args_bytes
from raytwin.runtime.control.messages import (
    ActorLineage,
    AssignTasks,
    ChainCommands,
    ChainOutput,
    ChainRequest,
    ClaimTasks,
    Command,
    DirectCall,
    ExportFunction,
    FunctionBlob,
    KvPut,
    KvReply,
    NodesJoined,
    ObjectPayload,
    ObjectsReady,
    PlaceTasks,
    PutObjects,
    Registered,
    RestoreActor,
    RunTasks,
    SaveActor,
    Snapshot,
    StreamItems,
    SubmitTasks,
    TaskResults,
    TasksClaimed,
    TasksDone,
    TasksMoved,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import pack
from raytwin.runtime.control.replication.state_machine import decode_frames


class MessageCost(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds for one message, received or sent."""

    message_s: float = 0.0
    range_s: float = 0.0
    element_s: float = 0.0
    byte_s: float = 0.0


class RoleCost(msgspec.Struct, forbid_unknown_fields=True):
    """The costs of a turn of one kind of process."""

    turn_s: float = 0.0
    after_s: float = 0.0
    """The part of `turn_s` after the turn's frames have left."""
    cold_s: float = 0.0
    """How much longer a code path takes once its core has idled for `REST_MAX_S`."""
    frame_s: float = 0.0
    received: MessageCost = msgspec.field(default_factory=MessageCost)
    sent: MessageCost = msgspec.field(default_factory=MessageCost)
    received_by_type: dict[str, MessageCost] = msgspec.field(default_factory=dict)
    sent_by_type: dict[str, MessageCost] = msgspec.field(default_factory=dict)


REST_MAX_S = 0.02
"""A rest that was longer costs no more: the caches are cold. Of the machine that the model was made
on, where what shorter ones cost grows with their square root."""
ROLES = ("head", "node", "worker", "driver")


PARTS_OF_CALLS = frozenset({"argument_byte", "watch"})
"""Costs of API calls that are no code path: each is of an amount within another call."""


def coldness(rested_s: float) -> float:
    """Return how cold a process's caches are after a rest, from 0 to 1."""
    return sqrt(rested_s / REST_MAX_S) if rested_s < REST_MAX_S else 1.0


class Interval(msgspec.Struct, forbid_unknown_fields=True):
    """The ends of the 95 % bootstrap interval of a figure."""

    low_s: float
    high_s: float


class Profile(msgspec.Struct, forbid_unknown_fields=True):
    """Times in seconds, sizes in bytes, rates in bytes/s."""

    name: str
    source: str
    """The origin of the figures; the report prints it."""
    cores: int
    """Per host."""
    latency_s: float
    """Of a frame between two hosts."""
    bandwidth: float
    """Of a host's network card, each way."""
    loopback_latency_s: float
    """Of a frame between two processes of one host, waking the reader included."""
    loopback_bandwidth: float
    memory_bandwidth: float
    """Of a copy into or out of the object store by one thread."""
    start_worker_s: float
    """CPU time from the request until a warm zygote's new process can report."""
    head: RoleCost
    node: RoleCost
    worker: RoleCost
    driver: RoleCost
    call_s: dict[str, float] = msgspec.field(default_factory=dict)
    """CPU time of an API call: submit, get, put, wait, next (of a stream); of each reference that a
    wait has to watch, in the mean of long lists: watch; of what a submission packs besides:
    argument (if it has any), argument_byte, reference; of what a worker unpacks: load, input (a
    value that was given by reference); read, of a value that comes out of the object store; of an
    item that a worker yields; and pickle, of each value that takes cloudpickle."""
    range_s: float = 0.0
    """CPU time of a worker per range: receive, decode, encode, report."""
    task_s: float = 0.0
    """CPU time of a worker per task, besides the user's code."""
    busy_rest: float = 1.0
    """The part of a rest that makes a process cold where its core has run others meanwhile. A core
    that idles may belong to somebody else, if the machine is a virtual one."""
    body_scale: float = 1.0
    """CPU time that the body of a task takes on the modelled machine, for each second that it takes
    where the simulation runs. Used where bodies are measured."""
    end_process_s: float = 0.0
    """CPU time from a process's end until its parent has reaped it and tells of it: the kernel
    gives back the memory before."""
    end_node_s: float = 0.0
    """The same of a node or the head: with more memory, reaped with what they leave."""
    start_node_s: float | None = None
    """CPU time until a new node, head or replica of the GCS can report; None: a worker's."""
    warm_up_s: float = 0.0
    """CPU time of a host's zygote before it forks the first worker: it loads the modules of
    workers."""
    warm_up_numpy_s: float = 0.0
    """How much more that is with numpy: of programs that have loaded it before `init()`."""
    memory_bandwidth_all: float = 0.0
    """Of a copy by the best number of threads; 0 if one thread is as fast."""
    copy_thread_s: float = 3e-5
    """Time to start one more thread on its part of a copy."""
    put_split_s: float = 0.0
    """Time that a put takes to divide its copy at all: its threads have gone to sleep since the
    last one, and another process may have their core."""
    put_thread_s: float | None = None
    """The `copy_thread_s` of puts; None: the same."""
    cached_copies: dict[int, tuple[float, float]] = msgspec.field(default_factory=dict)
    """Of copies into the store that the processor's caches speed up, by size in bytes, ascending:
    bytes/s by one thread, and by the best number of threads. Longer copies run at the memory's
    speed."""
    blob_byte_s: float = 0.0
    """CPU time of a program for a byte of a `Blob` that it makes: its pages are new."""
    run_queues: bool = False
    """Whether each core has a run queue, as on Linux: see `run_queues`. The paper's profile has one
    for a host: its nodes are larger, and its figures are fitted without."""
    touch_byte_s: float = 0.0
    """CPU time for a byte of a node's object store that is used for the first time, besides the
    copy."""
    transfer_byte_s: float = 0.0
    """CPU time of each of two nodes for a byte of an object that one sends to the other."""
    timer_s: float = 0.0
    """The tick of timers: a process that waits for one wakes up a whole number of ticks after it
    was set (epoll's timeouts are in milliseconds); 0: when it is due."""
    commit_s: float = 0.0
    """Of a turn in which a durable head writes to its file: the transaction."""
    disk_bandwidth: float = 1.25e9
    """Of a node's disk, which takes evicted objects; the default is the rate of an
    m4.16xlarge to its network disks (10 Gbit/s)."""

    # A calibration reports its own quality in the fields below, and the simulation charges none of
    # them; see `scenarios.measure.fit`.
    speed: float = 0.0
    """How fast the processor was: see `scenarios.core.measured_host.speed`; 0: nobody looked."""
    spread: float = 1.0
    """How many times as long the loads of the slowest round took as those of the fastest, by their
    geometric means."""
    loads: list[dict[str, dict[str, float]]] = msgspec.field(default_factory=list)
    """The loads that each round of the calibration measured: by load and role, CPU seconds per
    operation; ``wall`` and ``call`` are seconds, too."""
    residuals: dict[str, float] = msgspec.field(default_factory=dict)
    """The relative error of each load that the figures were fitted to, by ``load role``."""
    left_out: dict[str, float] = msgspec.field(default_factory=dict)
    """The relative error of each load with figures that were fitted to all others, by
    ``load role``."""
    intervals: dict[str, Interval] = msgspec.field(default_factory=dict)
    """The interval of each figure, by ``role.figure``."""

    def copy_s(self, nbytes: int, threads: int) -> float:
        """Return the seconds that `threads` threads take to copy `nbytes`, copy after copy."""
        return nbytes / self._copy_rate(nbytes, threads) + (threads - 1) * self.copy_thread_s

    def put_copy_s(self, nbytes: int, threads: int) -> float:
        """Return the seconds that `threads` threads take to copy `nbytes` into the store."""
        if threads == 1:
            return self.copy_s(nbytes, 1)
        thread_s = self.copy_thread_s if self.put_thread_s is None else self.put_thread_s
        split_s = self.put_split_s + (threads - 1) * thread_s
        return nbytes / self._copy_rate(nbytes, threads) + split_s

    def _copy_rate(self, nbytes: int, threads: int) -> float:
        """Return bytes/s of a copy by `threads` threads, once they are at it."""
        rate, best = self._copy_rates(nbytes)
        return rate if threads == 1 else max(rate, min(threads * rate, best))

    def _copy_rates(self, nbytes: int) -> tuple[float, float]:
        """Return bytes/s of a copy by one thread and by the best number of threads."""
        sizes = list(self.cached_copies)
        at = bisect_left(sizes, nbytes)
        if at == len(sizes):
            return self.memory_bandwidth, self.memory_bandwidth_all
        low, high = sizes[max(0, at - 1)], sizes[at]
        part = log(nbytes / low) / log(high / low) if at else 1.0
        ends = zip(self.cached_copies[low], self.cached_copies[high], strict=True)
        one, best = (a * (b / a) ** part for a, b in ends)
        return one, best

    def __post_init__(self) -> None:
        bandwidths = ("bandwidth", "loopback_bandwidth", "memory_bandwidth", "disk_bandwidth")
        for field in ("cores", *bandwidths, "body_scale"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} is {getattr(self, field)}, and has to be above 0")
        times = (
            "latency_s", "loopback_latency_s", "start_worker_s", "end_process_s", "end_node_s",
            "start_node_s", "range_s", "task_s", "warm_up_s", "warm_up_numpy_s", "blob_byte_s",
            "touch_byte_s", "transfer_byte_s", "timer_s", "commit_s", "copy_thread_s",
            "put_split_s", "put_thread_s",
        )  # fmt: skip
        for field in times:
            if (getattr(self, field) or 0.0) < 0:
                raise ValueError(f"{field} is {getattr(self, field)}, and cannot be negative")
        sizes = list(self.cached_copies)
        rates = (rate for each in self.cached_copies.values() for rate in each)
        if sizes != sorted(sizes) or min((*sizes, *rates), default=1) <= 0:
            raise ValueError("sizes and rates of cached_copies have to be above 0, sizes to ascend")
        if not 0 <= self.busy_rest <= 1:
            raise ValueError(f"busy_rest is {self.busy_rest}, and has to be between 0 and 1")
        for name in ROLES:
            role = getattr(self, name)
            if not 0 <= role.after_s <= role.turn_s:
                raise ValueError(
                    f"after_s of {name} is {role.after_s}, and has to be a part of its turn_s,"
                    f" {role.turn_s}"
                )


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Return the built-in profile of this name, or the one in the file at this path.

    Raises ValueError, in one line, if there is neither.
    """
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read the profile {path}: {error.strerror}") from error
    else:
        built_in = files("raytwin.simulator").joinpath("profiles", f"{name}.json")
        if not built_in.is_file():
            raise ValueError(f"no profile {str(name)!r}; there is 'paper', or a path to a .json")
        data = built_in.read_bytes()
    try:
        return msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not a profile: {error}") from error


Size = tuple[int, int, int]
"""Ranges, elements and bytes of a message."""

_BARE: Size = (1, 0, 60)


def _size_of_tasks(message: Any) -> Size:
    return _size_of_specs(message.tasks)


def _size_of_assignments(message: RunTasks) -> Size:
    return _size_of_specs([assignment.spec for assignment in message.tasks])


def _size_of_specs(specs: list[TaskSpec]) -> Size:
    ranges = len(specs)
    elements = 0
    nbytes = 120 * len(specs)
    for spec in specs:
        ranges += len(spec.deps)
        elements += spec.count
        nbytes += args_bytes(spec)
    return ranges, elements, nbytes


def _size_of_call(message: DirectCall) -> Size:
    return _size_of_specs([message.task])


def _size_of_results(message: Any) -> Size:
    elements = 0
    nbytes = 60 * len(message.results)
    for result in message.results:
        elements += result.count
        nbytes += len(result.payload) + len(result.calls)
    return len(message.results), elements, nbytes


def _size_of_updates(message: TaskUpdates) -> Size:
    elements = 0
    nbytes = 120 * len(message.added) + 30 * (len(message.done) + len(message.copies))
    for spec in message.added:
        elements += spec.count
        nbytes += len(spec.args)
    for _, _, count, _ in message.done:
        elements += count
    nbytes += 30 * len(message.puts)
    ranges = len(message.added) + len(message.done) + len(message.copies) + len(message.puts)
    gone = len(message.released) + len(message.owner_died)
    nbytes += 12 * len(message.with_references) + sum(
        12 + len(pack(cause)) for _, cause in message.unreconstructable
    )
    return ranges + len(message.released), elements, nbytes + 12 * gone


def _size_of_payload(message: ObjectPayload) -> Size:
    return 1, 0, 60 + (0 if message.result is None else len(message.result.payload))


def _size_of_values(message: ObjectsReady) -> Size:
    return len(message.values), 0, 60 + sum(60 + len(value.payload) for value in message.values)


def _size_of_commands(message: ChainCommands) -> Size:
    return 0, 0, 40 + sum(60 + len(command.body) for command in message.commands)


def _size_of_nodes(message: Registered | NodesJoined) -> Size:
    return 1, 0, 60 + 60 * len(message.nodes)


def _size_of_body(message: ChainRequest | ChainOutput) -> Size:
    return 0, 0, 60 + len(message.body or b"")


def _size_by(attribute: str) -> Callable[[Any], Size]:
    """Return the size function of messages whose one large attribute is bytes."""
    return lambda message: (1, 0, 60 + len(getattr(message, attribute) or b""))


_SIZES: dict[type, Callable[[Any], Size]] = {
    **dict.fromkeys(
        (SubmitTasks, PlaceTasks, TasksMoved, AssignTasks, ClaimTasks, TasksClaimed),
        _size_of_tasks,
    ),
    **dict.fromkeys((TasksDone, StreamItems, TaskResults, PutObjects), _size_of_results),
    RunTasks: _size_of_assignments,
    **dict.fromkeys((Registered, NodesJoined), _size_of_nodes),
    DirectCall: _size_of_call,
    TaskUpdates: _size_of_updates,
    ObjectPayload: _size_of_payload,
    ObjectsReady: _size_of_values,
    ChainCommands: _size_of_commands,
    **dict.fromkeys((ExportFunction, FunctionBlob), _size_by("blob")),
    **dict.fromkeys((ChainRequest, ChainOutput), _size_of_body),
    **dict.fromkeys((KvPut, KvReply), _size_by("value")),
    **dict.fromkeys((SaveActor, RestoreActor), _size_by("state")),
    ActorLineage: _size_by("checkpoint"),
    Snapshot: _size_by("data"),
}


def size_of(message: Any) -> Size:
    """Return (ranges, elements, bytes) of a message, for its cost."""
    size = _SIZES.get(type(message))
    return _BARE if size is None else size(message)


_Costs = tuple[float, float, float, float]
"""The attributes of a `MessageCost`, in order."""


class _CostsByType(dict[type, _Costs | None]):
    """The cost of each type of message, computed at its first use; None if it is free."""

    def __init__(self, default: MessageCost, by_name: dict[str, MessageCost]) -> None:
        super().__init__()
        self._default = default
        self._by_name = by_name

    def __missing__(self, kind: type) -> _Costs | None:
        costs: _Costs = astuple(self._by_name.get(kind.__name__, self._default))
        self[kind] = costs if any(costs) else None
        return self[kind]


class CostModel:
    """A role's costs, with a fast look-up by message type.

    The costs of user code are those of the profile; without one they are zero.
    """

    def __init__(self, role: RoleCost, profile: Profile | None = None) -> None:
        self._call_s = {} if profile is None else profile.call_s
        self._range_s = 0.0 if profile is None else profile.range_s
        self._task_s = 0.0 if profile is None else profile.task_s
        self.memory_bandwidth = inf if profile is None else profile.memory_bandwidth
        self._timer_s = 0.0 if profile is None else profile.timer_s
        self._busy_rest = 1.0 if profile is None else profile.busy_rest
        self.turn_s = role.turn_s
        self.after_s = role.after_s
        self.frame_s = role.frame_s
        self.cold_s = role.cold_s
        self.rests_count = role.cold_s > 0
        """Whether a process has to know how long its code paths have rested."""
        self._received = _CostsByType(role.received, role.received_by_type)
        self._sent = _CostsByType(role.sent, role.sent_by_type)
        # Every replica of a chain applies the same bodies, one after another.
        self._applied = lru_cache(maxsize=64)(self._cost_of_body)

    def called(self, kind: str, count: int) -> float:
        """Return the cost of `count` API calls of a kind."""
        return self._call_s.get(kind, 0.0) * count

    def ran(self, count: int) -> float:
        """Return the cost of a range of `count` tasks that a worker runs."""
        return self._range_s + self._task_s * count

    def turn(self, rested_s: float, idled_s: float) -> float:
        """Return the cost of a turn besides its messages; of rests see `cold`."""
        return self.turn_s + self.cold(rested_s, idled_s) if self.rests_count else self.turn_s

    def cold(self, rested_s: float, idled_s: float) -> float:
        """Return what a code path costs more after a rest; see `coldness`."""
        return self.cold_s * self.coldness(rested_s, idled_s)

    def coldness(self, rested_s: float, idled_s: float) -> float:
        """Return how cold a process's caches are after a rest, from 0 to 1; `idled_s` is how long
        its core has run nobody since."""
        if idled_s < rested_s:
            rested_s = idled_s + self._busy_rest * (rested_s - idled_s)
        return coldness(rested_s)

    def timer(self, delay_s: float) -> float:
        """Return after how long a timer wakes its process."""
        tick_s = self._timer_s
        return ceil(delay_s / tick_s - 1e-9) * tick_s if tick_s else delay_s

    def received(self, messages: list[Any]) -> float:
        """Return the cost of handling received messages."""
        total_s = 0.0
        for message in messages:
            kind = type(message)
            costs = self._received[kind]
            if costs is not None:
                message_s, range_s, element_s, byte_s = costs
                ranges, elements, nbytes = size_of(message)
                total_s += message_s + range_s * ranges + element_s * elements + byte_s * nbytes
            if kind is ChainRequest:
                total_s += self._applied(message.body)
            elif kind is ChainCommands:
                total_s += sum(self._applied(command.body) for command in message.commands)
        return total_s

    def recovered(self, snapshot: bytes | None, commands: list[Command]) -> float:
        """Return the cost of restoring a replica of the GCS from its file."""
        return len(snapshot or b"") / self.memory_bandwidth + sum(
            self._applied(command.body) for command in commands
        )

    def _cost_of_body(self, body: bytes) -> float:
        """Return the cost of handling the messages in a request to a chain of the GCS."""
        if not body:
            return 0.0
        return self.received([inner for frame in decode_frames(body) for inner in frame.messages])

    def sent(self, messages: list[Any]) -> tuple[float, int]:
        """Return the cost of sending messages in one frame, and the frame's bytes."""
        total_s = 0.0
        total_bytes = 40
        for message in messages:
            kind = type(message)
            ranges, elements, nbytes = size_of(message)
            total_bytes += nbytes
            costs = self._sent[kind]
            if costs is not None:
                message_s, range_s, element_s, byte_s = costs
                total_s += message_s + range_s * ranges + element_s * elements + byte_s * nbytes
        return total_s + self.frame_s, total_bytes
