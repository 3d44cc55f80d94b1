"""A bag of tasks in SimGrid: a driver and workers that are actors in Python.

Runs under an interpreter that has SimGrid's bindings, which may be another one than raytwin's: so
it imports nothing of raytwin's. Prints tasks per second of wall clock, and how many came back.

The driver sends a task to each idle worker, a message each; a worker computes and answers, and its
answer asks for the next task. That is what a driver, a scheduler and workers do on raytwin, without
the control plane between them. SimGrid slows down by how many messages are under way: so no worker
has a second task waiting, and receivers do not wait for the sender of each.
"""

from __future__ import annotations

import json
import sys
import time

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

CORES = 2
SPEED = 1e9
"""Operations a second."""
TASK_OPERATIONS = 1e4
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
        # The answers travel while the driver does something else.
        answers.set_receiver(Actor.self())
        idle = list(inboxes)
        for task in range(tasks):
            if not idle:
                worker, answered = answers.get()
                idle.append(inboxes[worker])
                done.add(answered)
            idle.pop().put_init(task, MESSAGE_BYTES).detach()
        while len(done) < tasks:
            done.add(answers.get()[1])
        for inbox in inboxes:
            inbox.put_init(None, MESSAGE_BYTES).detach()

    def worker(number: int) -> None:
        while (task := inboxes[number].get()) is not None:
            this_actor.execute(TASK_OPERATIONS)
            answers.put_init((number, task), MESSAGE_BYTES).detach()

    Actor.create("driver", hosts[0], driver)
    for number, inbox in enumerate(inboxes):
        Actor.create(inbox.name, hosts[number % nodes], worker, number)
    began_s = time.perf_counter()
    engine.run()
    return {"tasks_per_s": tasks / (time.perf_counter() - began_s), "done": len(done)}


if __name__ == "__main__":
    print(json.dumps(run(*map(int, sys.argv[1:]))))
