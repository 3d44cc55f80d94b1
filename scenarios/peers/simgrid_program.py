"""A bag of tasks in SimGrid: a driver and workers that are actors in Python.

Runs under an interpreter that has SimGrid's bindings, which may be another one than raytwin's: so
it imports nothing of raytwin's. Prints tasks per second of wall clock, and how many came back.

The driver submits task after task, each a message to a worker in turn; a worker computes and
answers; the driver takes the answers. That is what a program on raytwin does with a loop of
``f.remote(i)`` and a ``get`` of all; of what a runtime decides meanwhile there is nothing. SimGrid
slows down by how many messages are under way, so that the driver has `WINDOW` of them for each
worker, and not all as on raytwin.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

from simgrid import Actor, Comm, Engine, LinkInRoute, Mailbox, NetZone, this_actor

CORES = 2
SPEED = 1e9
"""Operations a second."""
TASK_OPERATIONS = 1e4
WINDOW = 2
MESSAGE_BYTES = 1_000
BANDWIDTH, LATENCY_S = 3.125e9, 25e-6
"""Of the link of each host to the one switch."""


def run(tasks: int, nodes: int) -> dict[str, float]:
    """Simulate the bag on so many hosts."""
    engine = Engine(["bag", "--log=root.threshold:warning"])
    cluster = NetZone.create_star_zone("cluster")
    hosts = []
    for node in range(nodes):
        host = cluster.create_host(f"node:{node}", SPEED)
        host.core_count = CORES
        link = cluster.create_split_duplex_link(f"link:{node}", BANDWIDTH)
        link.set_latency(LATENCY_S).seal()
        up = LinkInRoute(link, LinkInRoute.Direction.UP)
        cluster.add_route(host.netpoint, None, None, None, [up], True)
        hosts.append(host)
    cluster.seal()
    answers = Mailbox.by_name("driver")
    inboxes = [Mailbox.by_name(f"worker:{n}.{c}") for c in range(CORES) for n in range(nodes)]
    done: set[int] = set()

    def driver() -> None:
        most = WINDOW * len(inboxes)
        # SimGrid drops a message whose sender keeps no handle of it.
        sent: deque[Comm] = deque(maxlen=2 * most)
        for task in range(tasks):
            if task >= most:
                done.add(answers.get())
            sent.append(inboxes[task % len(inboxes)].put_async(task, MESSAGE_BYTES))
        while len(done) < tasks:
            done.add(answers.get())
        for inbox in inboxes:
            inbox.put(None, MESSAGE_BYTES)

    def worker(inbox: Mailbox) -> None:
        while (task := inbox.get()) is not None:
            this_actor.execute(TASK_OPERATIONS)
            answers.put(task, MESSAGE_BYTES)

    Actor.create("driver", hosts[0], driver)
    for number, inbox in enumerate(inboxes):
        Actor.create(inbox.name, hosts[number % nodes], worker, inbox)
    began_s = time.perf_counter()
    engine.run()
    return {"tasks_per_s": tasks / (time.perf_counter() - began_s), "done": len(done)}


if __name__ == "__main__":
    print(json.dumps(run(*map(int, sys.argv[1:]))))
