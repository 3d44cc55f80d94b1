"""FastAPI on uvicorn as a peer: a web service for a policy, and clients in processes of their own.

It stands for Clipper, which the paper compared with and which is no longer kept up: what Clipper
gave, a model behind HTTP in a process of its own, is written with these two today.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from raytwin.scenarios.applications.serving import Asked, Workload
from raytwin.scenarios.peers.companion import Companion

NEEDED = ("fastapi", "uvicorn", "orjson")
JSON, RAW = "FastAPI, JSON", "FastAPI, raw bytes"
SYSTEMS: Mapping[str, str] = {JSON: "json", RAW: "bytes"}
"""The form of states and actions, by the name of the system in rows."""


def missing() -> str:
    """Return what is missing, as one line, or "" if nothing is."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    return f"FastAPI is not measured: no {' and no '.join(lacking)} (pip install 'raytwin[peers]')"


@contextmanager
def serving(clients: int) -> Iterator[dict[str, Callable[[Workload, int], list[Asked]]]]:
    """Start the service and its clients; yield, by system, what has a batch so often evaluated.

    Raises PeerError.
    """
    package = __package__
    with ExitStack() as stack:
        service = stack.enter_context(Companion(f"{package}.http_service"))
        port = str(service.receive())
        started = [
            stack.enter_context(Companion(f"{package}.http_client", port)) for _ in range(clients)
        ]
        yield {system: partial(_ask_all, started, form) for system, form in SYSTEMS.items()}


def _ask_all(clients: list[Companion], form: str, workload: Workload, batches: int) -> list[Asked]:
    for number, client in enumerate(clients):
        client.send(form=form, workload=workload, client=number, batches=batches)
    return [Asked(*client.receive()) for client in clients]
