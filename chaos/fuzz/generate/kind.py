"""What all kinds of things have in common that are drawn into programs, each behind the rest."""

from __future__ import annotations

import random

from raytwin.chaos.fuzz.programs.program import LARGE_BYTES, Body, Op, Teller


class Kind:
    """Draws one kind into a program: operations with keys and variables of its own."""

    def __init__(self, rng: random.Random, keys: int, actors: int = 0, roomy: bool = False) -> None:
        """`keys`, `actors`: behind these come the numbers of operations, and of what `start` does.

        Unless it is `roomy`, a node's store may be too full for large values.
        """
        self.rng = rng
        self.roomy = roomy
        self.number = keys
        self.last_actor = actors
        self.tasks = 0
        """How many were drawn so far."""

    def next(self) -> int:
        """Return a key or variable that nothing has."""
        self.number += 1
        return self.number

    def start(self, teller: Teller) -> Op:
        """Return what starts an actor."""
        self.last_actor += 1
        return Op("actor", (), self.last_actor, teller=teller)

    def large(self, may_be_lost: bool = True) -> int:
        """Return the bytes of the largest value that may be drawn.

        A value in the store is lost with its node: one that may not be is short.
        """
        return LARGE_BYTES if self.roomy and may_be_lost else 8

    def rounds(self, body: Body, most: int) -> set[int]:
        """Return after which operations of a program something is drawn: so often at most."""
        count = min(len(body.ops), self.rng.randint(1, most))
        return set(self.rng.sample(range(len(body.ops)), count))
