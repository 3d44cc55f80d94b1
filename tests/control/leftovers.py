"""What must not be left in the tables of an idle cluster, and what a hanging one waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.control.world import World


def leftovers(world: World) -> dict[str, Any]:
    """Return every table that is not empty."""
    found: dict[str, Any] = {}

    def look(owner: str, thing: Any, *names: str) -> None:
        for name in names:
            value = getattr(thing, name)
            if value:
                found[f"{owner}.{name}"] = value

    look("gcs", world.gcs, "arrays")
    look("gcs", world.gcs.table.store, "tombstones")
    look("gcs", world.gcs.table.waiters, "arrays")
    look("gcs", world.gcs.table.store.lineage, "uses", "kept", "needed")
    standing = ("nodes", "members", "jobs")
    channels = {k: who for k, who in world.gcs.pubsub._channels.items() if k not in standing}
    if channels:
        found["gcs.pubsub"] = channels
    look("gcs.actors", world.gcs.actors, "rows", "names")
    look("global", world.globals, "_locating", "infeasible")
    look("global", world.globals, "_actors")
    for number, scheduler in world.nodes.items():
        if number in world.cut:
            continue
        at = f"node:{number}"
        look(at, scheduler, "queue")
        look(at, scheduler.inputs, "waiting", "awaiting", "failed", "_for_function", "_claims")
        look(at, scheduler.leases, "assigned")
        look(at, scheduler.results, "_for_others", "claims", "_gathered")
        look(f"{at}.actors", scheduler.actors, "actors", "queued", "unsent")
        look(f"{at}.pending_calls", scheduler.pending_calls, "_under_way", "unsent", "unwatched")
        look(f"{at}.pending_calls", scheduler.pending_calls, "_draining")
        for actor in scheduler.actors.actors.values():
            look(f"{at}.actor", actor, "asked")
        submitter = scheduler.pending_calls
        for route in (*submitter._routes.values(), *submitter._dead_routes.values()):
            look(f"{at}.route", route, "waiting", "sent", "out")
        if scheduler.pool.free != scheduler.pool.total:
            found[f"{at}.pool"] = scheduler.pool.free
        objects = scheduler.objects
        look(at, objects, "owners")
        look(f"{at}.owners", objects.owners, "others", "_counts", "actors", "died", "ends")
        look(f"{at}.results", objects.results, "_results", "_batches", "_failed", "_overlapping")
        look(
            f"{at}.memory", objects.memory, "_unsealed", "_stored", "_stored_of", "_pins",
            "_released_pinned", "_lost", "_idle", "_claims", "_spilling", "on_disk", "requests",
            "stored_bytes", "_idle_bytes", "spilled_bytes",
        )  # fmt: skip
        look(f"{at}.pulls", objects.pulls, "_wanted", "wanted_of", "_fetching")
        look(
            at, scheduler.log, "_rows", "_inputs", "_released", "_owner_died", "_known",
            "_exposed",
        )  # fmt: skip
        look(f"store:{number}", world.stores[number], "places", "disk")
    for address, shell in world.shells.items():
        if shell.node not in world.cut:
            client = shell.client
            look(address, client, "entries")
            look(address, client.references, "borrowed")
            look(address, client.pins, "objects", "_views", "_awaited", "_unpin_later")
            look(address, client.waits, "_waiters")
            look(address, client.requests, "allocations")
            look(address, client.buffer, "_submitted", "_puts", "_batch_arrays")
    return found


def describe(world: World) -> str:
    """Return what is left to do, for the message of a failure."""
    rows = [f"time {world.time_s:.4f}"]
    rows += [f"{name}: {value!r}"[:400] for name, value in leftovers(world).items()]
    for number, scheduler in world.nodes.items():
        for worker in scheduler.dispatcher.workers.values():
            assigned = [(s.array.hex()[:6], s.start, s.count) for s in worker.assigned]
            rows.append(f"node {number} {worker.address} {worker.state} {assigned}")
    return "\n".join(rows)
