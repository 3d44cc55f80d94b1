"""Asides: short parts with variables of their own, inserted into a random program.

Each is one feature that the rest of the program does not use: names, demands that no node can
meet, nodes that are not there, errors after which a task is retried, repeated waits on one list.
The operations of an aside keep their order; those of the program and of other asides may come
between its *chunks*. Nothing else waits for an aside, so what never runs delays nothing: the aside
itself ends it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from raytwin.chaos.fuzz.generate.drawing import SECONDS, Draw, Scope
from raytwin.chaos.fuzz.programs.program import (
    FIND_BY_NAME,
    LARGE_BYTES,
    MORE_THAN_A_NODE,
    NODES_MAX,
    RETRIES,
    START_IN_VAIN,
    START_UNLESS_THERE,
    ActorSpec,
    Body,
    Call,
    Op,
    Place,
)

ASIDES = 0.5
"""The share of programs with asides."""
WAITS_KEPT = 16
"""Of so many values a client keeps what it knows from one wait to the next."""
Chunk = tuple[Op, ...]


def with_asides(rng: random.Random, program: Body, draw: Draw, detached: bool = True) -> Body:
    """Return a program with asides in some programs; `draw` gives their keys and variables.

    Without `detached` it makes nothing that outlives its driver.
    """
    if rng.random() >= ASIDES:
        return program
    asides = Asides(rng, draw, detached)
    ops = list(program.ops)
    for _ in range(rng.choice([1, 2, 4])):
        chunks = rng.choice(asides.kinds)()
        at = sorted((rng.randint(0, len(ops)) for _ in chunks), reverse=True)
        for place, chunk in zip(at, reversed(chunks), strict=True):
            ops[place:place] = chunk
    return Body(tuple(ops))


class Asides:
    """Draws the asides of one program."""

    def __init__(self, rng: random.Random, draw: Draw, detached: bool) -> None:
        self.rng = rng
        self.may_detach = detached
        self.draw = draw
        self.kinds: list[Callable[[], list[Chunk]]] = [
            self.named_actor,
            self.named_actor,
            self.named_group,
            self.actor_with_input,
            self.infeasible_task,
            self.infeasible_actor,
            self.infeasible_group,
            self.pinned,
            self.flaky,
            self.waits,
            self.waits,
            self.look_ups,
        ]
        if "gpus" in draw.features:
            self.kinds.append(self.group_of_gpus)

    def _call(self, retries: int = -1, cpus: float = 0.0) -> Call:
        seconds = self.rng.choice(SECONDS)
        return Call(self.draw.next(), seconds, retries=retries, cpus=cpus)

    def _start(self, spec: ActorSpec) -> tuple[int, Op]:
        scope = Scope()
        return self.draw.start(scope, spec), scope.ops[0]

    def _tell(self, at: int, flaky: int = 0) -> tuple[int, Op]:
        key = self.draw.next()
        call = Call(key, self.rng.choice(SECONDS[:5]), retries=-1, flaky=flaky)
        return key, Op("tell", (at,), key, call)

    def named_actor(self) -> list[Chunk]:
        """An actor that is found by its name, and called through both handles."""
        rng, key = self.rng, self.draw.next()
        detached = self.may_detach and rng.random() < 0.5
        interval = rng.choice([0, 0, 1, 3])
        at, start = self._start(
            ActorSpec(key, interval=interval, name=f"n{key}", detached=detached)
        )
        chunks: list[Chunk] = [(start,)]
        for _ in range(rng.choice([1, 2, 3])):
            self.draw.last_actor += 1
            found = self.draw.last_actor
            way = rng.choice([FIND_BY_NAME, START_UNLESS_THERE, START_IN_VAIN])
            chunks.append((Op("find", (at,), found, count=way),))
            for _ in range(rng.choice([1, 2, 4])):
                chunks.append((self._tell(rng.choice([at, found]))[1],))
            if rng.random() < 0.5:
                chunks.append((Op("ready", (found,)),))
            chunks.append((Op("drop", (found,)),))
        if detached or rng.random() < 0.5:
            gone, tell = self._tell(at)
            get = Op("get", tuple(op.out for chunk in chunks for op in chunk if op.do == "tell"))
            end = (get, Op("kill", (at,)), tell, Op("gone", (gone,)), Op("drop", (gone,)))
            chunks.append(end)
        return chunks

    def actor_with_input(self) -> list[Chunk]:
        """An actor whose constructor needs a value; if that is an error, it never begins."""
        key, fails = self.draw.next(), self.rng.random() < 0.5
        made = Call(key, self.rng.choice(SECONDS), fails=fails, retries=-1, cpus=0.0)
        at, start = self._start(ActorSpec(self.draw.next()))
        out, tell = self._tell(at)
        chunks: list[Chunk] = [(Op("call", (), key, made),), (replace(start, ins=(key,)),), (tell,)]
        if fails:
            # Its error is no value of the program.
            chunks.append((Op("wait", (out,), count=1), Op("drop", (out,))))
        return chunks

    def named_group(self) -> list[Chunk]:
        """A group with a name, whose bundles need what no other task needs."""
        rng, group, key = self.rng, self.draw.next(), self.draw.next()
        bundles = tuple((("memory", 1e6),) for _ in range(rng.choice([1, 2, 3])))
        strategy = rng.choice(["PACK", "SPREAD", "STRICT_PACK"])
        reserve = Op(
            "group", (), group, bundles=bundles, strategy=strategy, name=f"n{group}",
            detached=self.may_detach and rng.random() < 0.5,
        )  # fmt: skip
        chunks: list[Chunk] = [(reserve,)]
        if rng.random() < 0.7:
            call = Op("call", (), key, self._call(rng.choice(RETRIES)), place=Place(group))
            chunks += [(call,), (Op("reserved", (group,)),), (Op("get", (key,)),)]
        return [*chunks, (Op("remove", (group,)),)]

    def group_of_gpus(self) -> list[Chunk]:
        """A group of GPUs, at once: other tasks wait for them until it is removed."""
        rng, group, key = self.rng, self.draw.next(), self.draw.next()
        amount = rng.choice([0.5, 1.0, 2.0])
        reserve = Op("group", (), group, bundles=((("GPU", amount),),))
        task = Call(key, rng.choice(SECONDS), retries=-1, cpus=0.0, gpus=min(1.0, amount))
        call = Op("call", (), key, task, place=Place(group, rng.choice([-1, 0])))
        return [(reserve, call, Op("get", (key,)), Op("drop", (key,)), Op("remove", (group,)))]

    def infeasible_task(self) -> list[Chunk]:
        """Tasks that no node can run, until they are cancelled."""
        rng = self.rng
        chunks: list[Chunk] = []
        ends: list[Chunk] = []
        held = self.draw.next()
        ins: tuple[int, ...] = ()
        if rng.random() < 0.5:
            # An input has to be located first.
            ins = (held,)
            nbytes = LARGE_BYTES if self.draw.large_stores else 8
            chunks.append((Op("call", (), held, Call(held, 0.01, nbytes, retries=-1, cpus=0.0)),))
        for _ in range(rng.choice([1, 2])):
            call = self._call(rng.choice(RETRIES), MORE_THAN_A_NODE)
            chunks.append((Op("call", ins, call.key, call),))
            ends.append((Op("cancel", (call.key,), call=call, count=rng.randrange(2)),))
        return [*chunks, *ends]

    def infeasible_actor(self) -> list[Chunk]:
        """An actor that no node can run, until it is killed."""
        at, start = self._start(ActorSpec(self.draw.next(), cpus=MORE_THAN_A_NODE))
        _, first = self._tell(at)
        gone, last = self._tell(at)
        return [
            (start, first, Op("drop", (first.out,))),
            (Op("kill", (at,)), last, Op("gone", (gone,)), Op("drop", (gone,))),
        ]

    def infeasible_group(self) -> list[Chunk]:
        """A group that no node can hold, with a task in it, until it is removed."""
        group = self.draw.next()
        bundles = ((("CPU", MORE_THAN_A_NODE),), (("memory", 1e6),))
        call = self._call(self.rng.choice(RETRIES))
        return [
            (Op("group", (), group, bundles=bundles),),
            (Op("call", (), call.key, call, place=Place(group, self.rng.choice([-1, 0, 1]))),),
            (Op("remove", (group,)),),
        ]

    def pinned(self) -> list[Chunk]:
        """Tasks that may run on one node only; some of the nodes are not there."""
        rng = self.rng
        chunks: list[Chunk] = []
        for _ in range(rng.choice([1, 3])):
            only = rng.choice([0, 1, 1, NODES_MAX])
            call = replace(self._call(rng.choice(RETRIES)), strategy=f"{only}!")
            chunks.append((Op("call", (), call.key, call),))
        return chunks

    def flaky(self) -> list[Chunk]:
        """Tasks and calls that raise at first, and are retried."""
        rng = self.rng
        chunks: list[Chunk] = []
        for _ in range(rng.choice([1, 2])):
            key, times = self.draw.next(), rng.choice([1, 2, 5])
            call = Call(key, rng.choice(SECONDS[:5]), retries=-1, cpus=0.0, flaky=times)
            chunks.append((Op("call", (), key, call),))
        if rng.random() < 0.6:
            at, start = self._start(ActorSpec(self.draw.next(), interval=rng.choice([0, 0, 1])))
            chunks.append((start,))
            for _ in range(rng.choice([1, 3])):
                out, tell = self._tell(at, rng.choice([0, 1, 2]))
                # Retried, it would take effect after later ones.
                chunks.append((tell, Op("get", (out,))))
        return chunks

    def waits(self) -> list[Chunk]:
        """Values that the driver, or a task, awaits one after another."""
        rng = self.rng
        chunk: list[Op] = []
        outs = []
        for _ in range(rng.choice([2, 4, WAITS_KEPT, WAITS_KEPT + 4])):
            nbytes = rng.choice([0, 8, LARGE_BYTES if self.draw.large_stores else 8])
            key, seconds = self.draw.next(), rng.choice(SECONDS)
            call = Call(key, seconds, nbytes, rng.random() < 0.1, rng.choice(RETRIES), 0.0)
            chunk.append(Op("call", (), key, call))
            outs.append(key)
        count, timeout_s = rng.choice([1, 1, 2, 5]), rng.choice([0.0, 0.0, 0.005, 0.05])
        waits = Op("waits", tuple(outs), count=count, timeout_s=timeout_s)
        if rng.random() < 0.5:
            return [tuple(chunk), (waits,)]
        key = self.draw.next()
        body = Body((*chunk, waits))
        call = Call(key, retries=rng.choice(RETRIES), cpus=0.0, body=body)
        return [(Op("call", (), key, call),)]

    def look_ups(self) -> list[Chunk]:
        """Tasks that the driver looks up in the history."""
        chunks: list[Chunk] = []
        for _ in range(self.rng.choice([2, 5])):
            call = self._call(self.rng.choice(RETRIES))
            look = Op("look_up", (call.key,))
            last = (Op("get", (call.key,)), look, Op("drop", (call.key,)))
            chunks += [(Op("call", (), call.key, call),), last]
        return chunks
