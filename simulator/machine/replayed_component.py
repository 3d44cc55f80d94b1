"""One component of a real cluster, made anew under the simulator's context and fed its journal.

The component gets the inputs of each turn at the time that the journal says, and its timers fire
in the turns in which they fired. So it sends what it sent then: each placement, each dispatch
to a worker, each answer. If it does not, its code has changed, or it depends on more than
its inputs.
"""

from __future__ import annotations

import bdb
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from raytwin.runtime.control.assembly import make_machine, make_node
from raytwin.runtime.control.core.addresses import (
    HEALTH,
    RELAY,
    STORAGE,
    chain_of,
    is_node,
    is_replica,
    master_of,
    node_of,
)
from raytwin.runtime.control.core.context import Component, Context
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.sharding.relay import Relay
from raytwin.runtime.control.messages import ReplicaInfo
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.master import Master
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.control.replication.state_machine import Machine
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.journal import Journal, Origin, Turn
from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.costs import CostModel, RoleCost
from raytwin.simulator.machine.host import Host
from raytwin.simulator.machine.observer import Observer
from raytwin.simulator.machine.simulated_process import Counts, SimContext, SimProcess

Sent = list[tuple[str, list[Any]]]
"""[(destination, [message, ...]), ...], as in `Turn.outputs`."""


class _OneProcess:
    """The `ProcessPort` of a process that is alone: its frames go nowhere."""

    def __init__(self, seed: int) -> None:
        self.env = Clock()
        self.seed = seed
        self.journal: Journal | None = None
        self.journaled: set[str] = set()
        self.counts: defaultdict[str, Counts] = defaultdict(Counts)
        self.processes: dict[str, SimProcess] = {}
        self.incarnations: dict[int, int] = {}
        self.skews_s: dict[int, float] = {}
        self.working = 0
        self.observer: Observer | None = None
        self.on_turn: list[Any] = []

    def transmit(
        self, sender: SimProcess, source: str, destination: str, messages: list[Any], nbytes: int
    ) -> None:
        raise AssertionError("a replayed component has its turns one by one")

    def new_session(self) -> int:
        raise AssertionError("a replayed component has no channels")


class _Timer:
    """A timer that the journal fires."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel


class _ReplayContext(SimContext):
    """The simulator's context, whose timers fire in the turns in which they fired."""

    def __init__(self, process: SimProcess, address: str, seed: int) -> None:
        super().__init__(process, address, seed)
        self.pending: dict[int, Callable[[], None]] = {}
        """The callbacks of timers that have neither fired nor been cancelled, by number."""

    def after(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers += 1
        self.pending[self.timers] = callback
        return _Timer(partial(self.pending.pop, self.timers, None))


class TimerUnset(Exception):
    """A timer fired in the journal that the replayed component has not set, or has cancelled."""


@dataclass(frozen=True)
class ReplayedTurn:
    """A turn of the journal, and what the component has made of it now."""

    number: int
    turn: Turn
    sent: Sent
    error: Exception | None = None
    """What it has raised."""

    @property
    def agrees(self) -> bool:
        """Whether it has sent and raised what it did then. Errors are compared by their type."""
        raised = "" if self.error is None else type(self.error).__name__
        return raised == self.turn.error.partition("(")[0] and self.sent == self.turn.outputs


def replay(
    origin: Origin, turns: Iterable[Turn], stop_before: int | None = None
) -> Iterator[ReplayedTurn]:
    """Make a component, give it its turns from turn 0 on, and yield each.

    The turn in which the component raises is the last. `breakpoint` is called just before turn
    `stop_before`, of 1 or more.
    """
    component: ReplayedComponent | None = None
    for number, turn in enumerate(turns):
        try:
            if component is None:
                component = ReplayedComponent(origin, turn.now_s)
                sent = component.take_sent()
            else:
                sent = component.play(turn, number == stop_before)
        except bdb.BdbQuit:
            raise
        except Exception as error:
            sent = component.take_sent() if component is not None else []
            yield ReplayedTurn(number, turn, sent, error)
            return
        yield ReplayedTurn(number, turn, sent)


class ReplayedComponent:
    """A component, and its turns one after another, from turn 0 on."""

    def __init__(self, origin: Origin, began_s: float) -> None:
        """`began_s`: the time of turn 0, in which the component is made."""
        self.origin = origin
        cluster = _OneProcess(origin.config.seed)
        self._clock = cluster.env
        self._clock.now = began_s
        costs = CostModel(RoleCost())
        process = SimProcess(cluster, origin.component, 0, Host(self._clock, 1), costs)
        self._ctx = _ReplayContext(process, origin.component, cluster.seed)
        self.component = _made(self._ctx, origin)

    def play(self, turn: Turn, debug: bool = False) -> Sent:
        """Give the component its next turn; return what it has sent.

        With `debug`, `breakpoint` is called just before. Raises what the component raises, and
        TimerUnset.
        """
        component = self.component
        self._clock.now = turn.now_s
        timer = None
        if turn.timer:
            timer = self._ctx.pending.pop(turn.timer, None)
            if timer is None:
                raise TimerUnset(f"timer {turn.timer} fired, and it is not set")
        if debug:
            breakpoint()
        for source, messages in turn.inputs:
            for message in messages:
                component.handle(source, message)
        if timer is not None:
            timer()
        component.end_turn()
        return self.take_sent()

    def take_sent(self) -> Sent:
        """Return what was sent since the last turn: in turn 0, by the constructor."""
        sent, self._ctx.outbox = self._ctx.outbox, {}
        return list(sent.items())


def _made(ctx: Context, origin: Origin) -> Component:
    """Make a component as its process has made it, and start it."""
    address, config = origin.component, origin.config
    made: Any
    if address == "gcs":
        return Gcs(ctx, config)
    if address == "global":
        return GlobalScheduler(ctx, config)
    if address == HEALTH:
        made = FailureDetector(ctx, config)
    elif address == RELAY:
        made = Relay(ctx, config.chains)
    elif is_node(address):
        return _node(ctx, origin)
    elif is_replica(address):
        made = _replica(ctx, origin)
    else:
        (chain,) = (each for each in range(config.chains) if master_of(each) == address)
        made = ChainClient(ctx, address, lambda inner: Master(inner, config, chain), chain)
        made.start()
        made.inner.start()
        return made
    made.start()
    return made


def _node(ctx: Context, origin: Origin) -> Component:
    number, config = node_of(origin.component), origin.config

    def make(inner: Context) -> NodeManager:
        return NodeManager(inner, number, origin.resources, config, origin.incarnation)

    made, chains, manager = make_node(ctx, origin.component, origin.incarnation, config, make)
    manager.start(origin.host, origin.port)
    for chain in chains:
        chain.start()
    return made


def _replica(ctx: Context, origin: Origin) -> Replica:
    name, config = origin.component, origin.config

    def make() -> Machine:
        machine = make_machine(config, chain_of(name))
        if origin.state:
            machine.restore(origin.state)
        return machine

    info = ReplicaInfo(name, origin.host, origin.port)
    return Replica(ctx, info, config, make, STORAGE if config.gcs_durable else "")
