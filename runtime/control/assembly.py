"""What a replica of the GCS runs: the GCS and the global scheduler, or a shard, as one machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from raytwin.runtime.control.core.addresses import shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Component, Context
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.sharding.router import RoutedNode
from raytwin.runtime.control.gcs.sharding.shard import Shard, ShardedGcs, ShardedScheduler
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.replication.client import Chained
from raytwin.runtime.control.replication.state_machine import Machine
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler


def make_machine(config: Config, chain: int = 0) -> Machine:
    """Return the machine that every replica of a chain starts out with."""
    if chain:
        return Machine({shard_address(chain): lambda ctx: Shard(ctx, config, chain)}, config)
    if config.gcs_shards > 1:
        return Machine(
            {
                "gcs": lambda ctx: ShardedGcs(ctx, config),
                "global": lambda ctx: ShardedScheduler(ctx, config),
            },
            config,
        )
    return Machine(
        {"gcs": lambda ctx: Gcs(ctx, config), "global": lambda ctx: GlobalScheduler(ctx, config)},
        config,
    )


def make_node(
    ctx: Context, address: str, config: Config, make: Callable[[Context], NodeManager]
) -> tuple[Component, list[Chained], NodeManager]:
    """Make a local scheduler with what is between it and the GCS of this cluster.

    Returns the component that stands for all, the clients of chains among them, by
    chain, and the scheduler.
    """
    made: list[NodeManager] = []
    chains: dict[int, Chained] = {}

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
        chains[chain] = Chained(inner, address, further, chain)
        return chains[chain]

    component = chained(0, ctx) if config.chained else scheduler(ctx)
    links = [chains[chain] for chain in sorted(chains)]
    if nodes:
        for link in links[1:]:
            link.greet()
        nodes[0].await_shards(lambda: not any(link.unconfirmed for link in links[1:]))
    return component, links, made[0]
