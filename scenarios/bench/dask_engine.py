"""Dask beside Ray: the names of Ray's API that the cases use, over ``distributed``.

===================== =======================================================
here                  there
===================== =======================================================
``init``              `LocalCluster`: processes of one thread each, and a Client
``f.remote``          ``Client.submit(f, ..., pure=False)``
``f.map``             ``Client.map(f, ..., pure=False)``
``C.remote``          ``Client.submit(C, ..., actor=True)``
``put``               ``Client.scatter``
``get``               ``Future.result`` and ``Client.gather``
``wait``              ``distributed.wait``, for the first one; `ObjectRef` is a Future
===================== =======================================================

Where the two differ:

- ``pure=False``: otherwise Dask names a task by its function and arguments, and
  runs equal ones once.
- An actor of Dask is an object in a worker process that runs tasks as well, not
  a process of its own: `create_100_actors` has no equivalent.
- Its scheduler is a thread of the driver's process.
- What is put goes to a worker's memory over a socket. Dask has no store that
  processes share, and none whose size could be set; its own limit on a worker's
  memory, at which it begins to write to disk, is off.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import distributed

_client: distributed.Client | None = None
_cluster: distributed.LocalCluster | None = None


def init(*, workers: int, directory: str) -> None:
    """Start a cluster of so many processes on this machine, with files in `directory`."""
    global _client, _cluster
    _cluster = distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        dashboard_address=None,
        worker_dashboard_address=None,
        local_directory=directory,
        silence_logs=logging.ERROR,
    )
    _client = distributed.Client(_cluster)


def shutdown() -> None:
    """End the cluster, if there is one."""
    global _client, _cluster
    client, cluster, _client, _cluster = _client, _cluster, None, None
    if client is not None:
        client.close()
    if cluster is not None:
        cluster.close()


def _connected() -> distributed.Client:
    if _client is None:
        raise RuntimeError("there is no cluster: call init first")
    return _client


class RemoteFunction:
    """A function whose calls are tasks."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def remote(self, *args: Any) -> Any:
        """Submit a task and return its future."""
        return _connected().submit(self._function, *args, pure=False)

    def map(self, items: Collection[Any]) -> list[Any]:
        """Submit a task for each item and return their futures."""
        futures: list[Any] = _connected().map(self._function, items, pure=False)
        return futures


class ActorClass:
    """A class whose instances are actors."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def remote(self, *args: Any) -> ActorHandle:
        """Start an actor; Dask gives its handle once it is there."""
        future = _connected().submit(self._cls, *args, actor=True, pure=False)
        return ActorHandle(future.result(), future)


class ActorHandle:
    """An actor, kept alive by its future."""

    def __init__(self, actor: Any, future: Any) -> None:
        self._actor = actor
        self._future = future

    def __getattr__(self, name: str) -> ActorMethod:
        return ActorMethod(getattr(self._actor, name))


class ActorMethod:
    """A method of an actor."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any) -> Any:
        """Call the method and return the call's future."""
        return self._method(*args)


def remote(target: Any) -> Any:
    """Make a function or class remote."""
    return ActorClass(target) if isinstance(target, type) else RemoteFunction(target)


def put(value: Any) -> Any:
    """Send a value to a worker and return its future."""
    # Hashing it, as Dask does by default, would give equal values one name.
    return _connected().scatter(value, hash=False)


def get(refs: Any) -> Any:
    """Return the value of a future, or the values of a list of them."""
    if not isinstance(refs, list):
        return refs.result()
    if refs and not isinstance(refs[0], distributed.Future):
        # Calls of actors have futures of another class, which are gathered one by one.
        return [ref.result() for ref in refs]
    return _connected().gather(refs)


def wait(refs: Sequence[Any], fetch_local: bool = True) -> tuple[list[Any], list[Any]]:
    """Return ([the first of `refs` that is ready], [the others]).

    Dask fetches nothing here; `fetch_local` only makes the call look the same.
    """
    done = distributed.wait(refs, return_when="FIRST_COMPLETED").done
    at = next(at for at, ref in enumerate(refs) if ref in done)
    return [refs[at]], [*refs[:at], *refs[at + 1 :]]
