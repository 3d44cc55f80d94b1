"""Addresses of components: their form, and the facts that can be read from one.

=============================== ==========================================================
``gcs``, ``gcs.<s>``            the GCS; the tables of its shard s, from 1
``global``                      the global scheduler
``links``, ``links:<n>``        the connections of the head, and of node n
``health``, ``heartbeat:<n>``   the failure detector in the head; node n's sender of heartbeats
``node:<n>``                    the node process: local scheduler and object manager
``store:<n>``, ``pool:<n>``     a node's object store; the part that starts its workers
``admission:<n>``               the part of node n that admits drivers
``worker:<n>.<k>``              worker k of node n; a driver: ``driver:<n>.<k>``
``replica:<n>.<k>``             a replica of a GCS shard's chain
``master``, ``master.<c>``      the master of chain c
``relay``                       the client by which the chains reach one another
``storage:gcs``                 the disk to which the GCS flushes
=============================== ==========================================================
"""

from __future__ import annotations

from functools import lru_cache

Address = str
"""One of the forms above."""

WORKERS_PER_INCARNATION = 1_000_000
"""Incarnation i of a node numbers its workers from (i - 1) times this on, so that no address
is ever used twice."""

STORAGE = "storage:gcs"
"""The disk of the GCS's flushed rows."""

HEAD = "head"
"""The name of the head's process."""
HEALTH = "health"
"""The failure detector, in the head."""
MASTER = "master"
RELAY = "relay"
"""Carries messages between chains; see `gcs.sharding.relay`."""

REPLICAS_PER_CHAIN = 1_000_000
"""Chain k numbers its replicas from k times this on."""


def is_gcs(address: Address) -> bool:
    """Whether the address is that of the GCS, or of a shard of it.

    >>> is_gcs("gcs"), is_gcs("gcs.2"), is_gcs("global")
    (True, True, False)
    """
    return address.partition(".")[0] == "gcs"


def is_node(address: Address) -> bool:
    """Whether an address is a node's, well-formed.

    >>> is_node("node:12"), is_node("node:"), is_node("gcs")
    (True, False, False)
    """
    return address.startswith("node:") and _is_number(address[5:])


def is_replica(address: Address) -> bool:
    """Whether an address is a GCS replica's, well-formed.

    >>> is_replica("replica:0.2"), is_replica("node:0")
    (True, False)
    """
    return address.startswith("replica:0.") and _is_number(address[10:])


def _is_number(text: str) -> bool:
    """Whether this is how a number of at most nine digits is written."""
    return text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text


@lru_cache(maxsize=65_536)
def node_of(address: Address) -> int:
    """Return the number of the node that `address` lives on.

    >>> node_of("worker:3.7"), node_of("node:12")
    (3, 12)

    Raises ValueError for ``gcs`` and ``global``, which live on no node.
    """
    kind, _, rest = address.partition(":")
    if not rest:
        raise ValueError(f"{kind!r} does not live on a node")
    return int(rest.partition(".")[0])


@lru_cache(maxsize=65_536)
def incarnation_of(address: Address) -> int:
    """Return in which incarnation of its node a worker or driver lives.

    >>> incarnation_of("worker:3.7"), incarnation_of("worker:3.1000007")
    (1, 2)
    """
    return int(address.rpartition(".")[2]) // WORKERS_PER_INCARNATION + 1


def heartbeat_of(node: int) -> str:
    """Return the address of a node's sender of heartbeats."""
    return f"heartbeat:{node}"


def process_of(address: Address) -> str:
    """Return the process that an address outside of this process belongs to.

    >>> process_of("gcs"), process_of("node:3"), process_of("replica:0.2"), process_of("links:3")
    ('head', 'node:3', 'replica:0.2', 'links:3')
    """
    return address if ":" in address else HEAD


def shard_address(shard: int) -> str:
    """Return the address of a shard's tables."""
    return f"gcs.{shard}"


def master_of(chain: int) -> str:
    """Return the address of a chain's master.

    >>> master_of(0), master_of(3)
    ('master', 'master.3')
    """
    return f"master.{chain}" if chain else "master"


def chain_of(replica: str) -> int:
    """Return the chain that a replica belongs to, by its name.

    >>> chain_of("replica:0.2"), chain_of("replica:0.3000001")
    (0, 3)
    """
    return int(replica.partition(".")[2]) // REPLICAS_PER_CHAIN


def node_tables(chained: bool, chains: int) -> list[str]:
    """Return the components in the head that pass the death of a node on to the GCS.

    >>> node_tables(False, 1), node_tables(True, 2)
    (['gcs'], ['master', 'master.1'])
    """
    return [master_of(chain) for chain in range(chains)] if chained else ["gcs"]


def chain_addresses(chain: int) -> frozenset[str]:
    """Return the addresses of the components that a chain replicates."""
    return frozenset({shard_address(chain)}) if chain else frozenset({"gcs", "global"})


def agent_of(address: str) -> str:
    """Return the chain client that receives a chain's messages for an address.

    This is the master for the head's connections, and the relay for components of other chains.

    >>> agent_of("links"), agent_of("gcs.2"), agent_of("node:3")
    ('master', 'relay', 'node:3')
    """
    if address == "links":
        return MASTER
    return RELAY if is_gcs(address) or address == "global" else address


def may_repeat_calls(owner: str) -> bool:
    """Whether a client may make a call of the same incarnation of an actor twice.

    A task or an actor may: it runs again after a failure. A driver's program does not, and
    its node sends a call once to each incarnation.

    >>> may_repeat_calls("worker:0.1"), may_repeat_calls("driver:0.0")
    (True, False)
    """
    return not owner.startswith("driver:")
