"""The Docker engine: the connection to it, the network of a cluster, and removal by label.

Everything that a cluster makes in the engine has the label `LABEL` with the cluster's name.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

import docker
from docker.errors import APIError, DockerException
from docker.types import IPAMConfig, IPAMPool

P = ParamSpec("P")
T = TypeVar("T")

LABEL = "raytwin.cluster"
TIMEOUT_S = 60
SUBNETS_TRIED_MAX = 50
CONNECTIONS = 16
"""The most requests to the engine at once."""
LOOK_S = 0.05
"""Seconds between two looks at what is left of a cluster."""
REMOVAL_S = 60.0


class NoEngine(RuntimeError):
    """No Docker engine answers."""


def address() -> str:
    """Return the address of the engine that the environment names."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def connect() -> docker.DockerClient:
    """Return a client of the engine that the environment names; raises NoEngine."""
    try:
        client = docker.from_env(timeout=TIMEOUT_S, max_pool_size=CONNECTIONS)
        client.ping()
    except (DockerException, OSError, ValueError) as error:
        raise NoEngine(
            f"backend docker needs a Docker engine, and none answers at {address()}"
            f" ({_root_of(error)}): start dockerd on this machine, or set DOCKER_HOST"
        ) from None
    return client


def _root_of(error: BaseException) -> str:
    """Return the innermost cause of an error, in one line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return " ".join(str(error).split())


def reported(operation: Callable[P, T]) -> Callable[P, T]:
    """Make an operation raise RuntimeError, in one line, for an error of the engine."""

    @functools.wraps(operation)
    def with_reports(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return operation(*args, **kwargs)
        except (DockerException, OSError) as error:
            said = error.explanation if isinstance(error, APIError) else error
            raise RuntimeError(f"the Docker engine: {' '.join(str(said).split())}") from error

    return with_reports


@contextmanager
def ended_ignored() -> Iterator[None]:
    """Ignore that a container has ended."""
    try:
        yield
    except APIError as error:
        if error.status_code not in (404, 409):  # not there any more, does not run any more
            raise


def create_network(client: docker.DockerClient, name: str) -> ipaddress.IPv4Network:
    """Create a cluster's network and return its subnet, which is in use nowhere else.

    The first host of the subnet is the gateway, an address of this machine. Docker keeps the
    addresses of a chosen subnet only, so that a node returns under its own.
    """
    taken = _routed()
    for _ in range(SUBNETS_TRIED_MAX):
        second, third = os.urandom(2)
        subnet = ipaddress.IPv4Network((f"10.{second}.{third}.0", 24))
        if any(subnet.overlaps(other) for other in taken):
            continue
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            client.networks.create(
                name, driver="bridge", labels={LABEL: name}, ipam=IPAMConfig(pool_configs=[pool])
            )
        except APIError as error:
            if "overlap" not in str(error).lower():
                raise
            taken.append(subnet)
            continue
        return subnet
    raise RuntimeError(f"no free subnet of 10.0.0.0/8 among {SUBNETS_TRIED_MAX}")


def _routed() -> list[ipaddress.IPv4Network]:
    """Return the networks to which this machine has routes, except for the default route."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask:
            found.append(ipaddress.IPv4Network((address, mask.bit_count())))
    return found


def remove_cluster(client: docker.DockerClient, name: str) -> None:
    """Remove a cluster's containers and network; return when the engine has none of them."""
    deadline_s = time.monotonic() + REMOVAL_S
    while _remove_seen(client, name):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"containers or the network of {name} cannot be removed")
        time.sleep(LOOK_S)


def _remove_seen(client: docker.DockerClient, name: str) -> bool:
    """Remove what the engine lists of a cluster; return whether there was anything."""
    filters = {"label": f"{LABEL}={name}"}
    rows = client.api.containers(all=True, filters=filters)
    for row in rows:
        # Refused while a container's end or removal is under way: the next look shows what is left.
        with suppress(APIError):
            if row["State"] in ("running", "paused"):
                client.api.kill(row["Id"])  # the engine removes it then
            else:
                client.api.remove_container(row["Id"], force=True)
    networks = client.networks.list(filters=filters)
    for network in networks:
        with suppress(APIError):
            network.remove()
    return bool(rows or networks)
