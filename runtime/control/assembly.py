"""Puts components together: a GCS replica's state machine, the masters of all chains in the head,
and a node with its GCS clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from raytwin.runtime.control import core, gcs, messages, scheduling
from raytwin.runtime.control.core.addresses import RELAY, STORAGE, master_of, shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Component, Context
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.sharding.relay import Relay
from raytwin.runtime.control.gcs.sharding.router import RoutedNode
from raytwin.runtime.control.gcs.sharding.shard import Shard, ShardedGcs, ShardedScheduler
from raytwin.runtime.control.messages import ReplicaInfo
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.replication import state_machine
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.master import Master
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.control.replication.snapshot import StateTypes
from raytwin.runtime.control.replication.state_machine import Factory, Machine
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler

# After the imports above, which load every module of these packages that a machine uses.
STATE_TYPES = StateTypes(messages, core, gcs, scheduling, state_machine)
"""The classes of all objects in the state of a replica's machine, for its snapshots."""


def make_machine(config: Config, chain: int = 0) -> Machine:
    """Return a replica's machine in its first state: the GCS and the global scheduler, or a
    shard."""
    factories: dict[str, Factory]
    if chain:
        factories = {shard_address(chain): lambda ctx: Shard(ctx, config, chain)}
    elif config.gcs_shards > 1:
        factories = {
            "gcs": lambda ctx: ShardedGcs(ctx, config),
            "global": lambda ctx: ShardedScheduler(ctx, config),
        }
    else:
        factories = {
            "gcs": lambda ctx: Gcs(ctx, config),
            "global": lambda ctx: GlobalScheduler(ctx, config),
        }
    return Machine(factories, config, STATE_TYPES)


def make_durable_replica(ctx: Context, name: str, config: Config, machine: Machine) -> Replica:
    """Return the one replica of a durable GCS, in the head's process; `machine` is restored."""
    return Replica(ctx, ReplicaInfo(name, "", 0), config, lambda: machine, STORAGE)


class Masters:
    """The masters of all chains, and the relay between several chains, in the head's process."""

    def __init__(
        self,
        config: Config,
        context: Callable[[str], Context],
        add: Callable[[str, Component], None],
    ) -> None:
        """`context` returns a component's context, by its address; `add` adds it to the process."""
        self.of_chains: list[Master] = []
        """By number of the chain; see `gcs.sharding`."""
        self._parts: dict[str, ChainClient | Relay] = {}
        for chain in range(config.chains):
            address = master_of(chain)
            make = partial(Master, config=config, chain=chain)
            client = ChainClient(context(address), address, make, chain)
            assert isinstance(client.inner, Master)
            self.of_chains.append(client.inner)
            self._parts[address] = client
        if config.chains > 1:
            self._parts[RELAY] = Relay(context(RELAY), config.chains)
        for address, part in self._parts.items():
            add(address, part)

    @property
    def addresses(self) -> list[str]:
        """The addresses of these components."""
        return list(self._parts)

    def start(self) -> None:
        """Start all of them, once the launcher of replicas is there."""
        for part in self._parts.values():
            part.start()
        for master in self.of_chains:
            master.start()


def make_node(
    ctx: Context,
    address: str,
    incarnation: int,
    config: Config,
    make: Callable[[Context], NodeManager],
) -> tuple[Component, list[ChainClient], NodeManager]:
    """Make a node manager with the router and chain clients between it and the cluster's GCS.

    Returns the outermost component, the clients of the chains in it, by chain, and the node
    manager.
    """
    made: list[NodeManager] = []
    chains: dict[int, ChainClient] = {}

    def scheduler(inner: Context) -> Component:
        made.append(make(inner))
        return made[0]

    nodes: list[RoutedNode] = []

    def routed(inner: Context) -> Component:
        nodes.append(RoutedNode(inner, config.gcs_shards, scheduler))
        return nodes[0]

    def chained(chain: int, inner: Context) -> Component:
        further = routed if config.gcs_shards > 1 else scheduler
        if chain < config.chains - 1:
            further = partial(chained, chain + 1)
        chains[chain] = ChainClient(inner, address, further, chain, float(incarnation))
        return chains[chain]

    component = chained(0, ctx) if config.chained else scheduler(ctx)
    links = [chains[chain] for chain in sorted(chains)]
    if nodes:
        for link in links[1:]:
            link.introduce()
        nodes[0].await_shards(lambda: not any(link.unconfirmed for link in links[1:]))
    return component, links, made[0]
