"""Ring allreduce between actors: every member ends with the sum of all members' vectors.

A vector has a chunk for each of the N members, and a chunk some pieces. Chunks go around the ring
twice. First they grow: each member sends its own chunk to the next member, which adds its own
numbers and sends the sum on, so that after N - 1 rounds each member has one chunk that is complete
(reduce-scatter). Then the complete ones go around (allgather). Every member sends 2 (N - 1) / N of
its vector, which is as little as can be.

The driver submits all of it at once, as calls that depend on one another: a round is one call of
every member for each piece, whose argument is a reference to what the call of the member before it
returned. So a call is scheduled when its piece has arrived, and the pieces of a chunk form a
pipeline: while one is on its way, the member adds up another. The rounds are 2 N - 1 with the
first, in which members only hand over their own chunk: at 16 members 31, with 16 calls in each.

Numbers are whole and small enough that a sum is exact in any order: every member's result is
compared with the sum. On real backends a vector is a numpy array; in virtual time each piece is one
number, a `Blob` has its size, and what numpy would do takes as long as `Passes` says.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

import raytwin as ray

ITEM_BYTES = 4
"""Of a float32, as gradients are."""
WARM_UPS = 3
"""Allreduces of a ring of real processes until one takes no less time than the one before: the
first two touch new memory."""
PERIOD = 251
"""Vectors repeat after so many numbers: sums of up to 300 members are exact in float32."""


class Passes(NamedTuple):
    """How many seconds one core takes to pass over a piece."""

    add_s: float
    copy_s: float


def as_copies(members: int, pieces: int, nbytes: int, bytes_per_s: float) -> Passes:
    """Return the passes over the pieces of a vector where a sum takes as long as a copy."""
    piece_s = nbytes // (members * pieces) / bytes_per_s
    return Passes(piece_s, piece_s)


def numbers(member: int, count: int) -> Any:
    """Return so many numbers of a member: it has ``member + 1`` times what the first one has."""
    return np.resize(np.arange(PERIOD, dtype=np.float32) * (member + 1), count)


def sums(members: int, count: int) -> Any:
    """Return the sums of so many numbers of all members."""
    return numbers(members * (members + 1) // 2 - 1, count)


class Vector(Protocol):
    """One member's numbers and its result, by piece."""

    def own(self, piece: int) -> Any:
        """Return a piece of the numbers, to be sent."""

    def add(self, piece: int, arrived: Any, last: bool) -> Any:
        """Return the sum of a piece and what has arrived; the `last` sum is the result."""

    def keep(self, piece: int, arrived: Any) -> Any:
        """Keep a piece of the result, and return it, to be sent on."""

    def right(self) -> bool:
        """Return whether the result is the sum of all, and begin anew without one."""


class RealVector:
    """A numpy array of float32."""

    def __init__(self, member: int, members: int, pieces: int, nbytes: int) -> None:
        count = max(nbytes // ITEM_BYTES, members * pieces)
        self._numbers = numbers(member, count)
        self._members = members
        self._result = np.zeros_like(self._numbers)
        self._cuts = np.linspace(0, count, members * pieces + 1).astype(int)
        self._sum = np.zeros(int(np.diff(self._cuts).max()), np.float32)
        """Of a piece; its pages are there, and what is returned is copied into the store."""

    def own(self, piece: int) -> Any:
        return self._numbers[self._cuts[piece] : self._cuts[piece + 1]]

    def add(self, piece: int, arrived: Any, last: bool) -> Any:
        begin, end = self._cuts[piece], self._cuts[piece + 1]
        into = self._result[begin:end] if last else self._sum[: end - begin]
        return np.add(self._numbers[begin:end], arrived, out=into)

    def keep(self, piece: int, arrived: Any) -> Any:
        self._result[self._cuts[piece] : self._cuts[piece + 1]] = arrived
        return arrived

    def right(self) -> bool:
        right = np.array_equal(self._result, sums(self._members, len(self._result)))
        self._result[:] = 0
        return bool(right)


class VirtualVector:
    """A number and a size for each piece."""

    def __init__(self, member: int, members: int, pieces: int, nbytes: int, passes: Passes) -> None:
        count = members * pieces
        self._numbers = numbers(member, count)
        self._members = members
        self._result = np.zeros_like(self._numbers)
        self._blob = ray.Blob(nbytes // count)
        """As large as a piece; its pages are there, as those of an array are that is returned."""
        self._passes = passes

    def _sent(self, number: Any) -> Any:
        return float(number), self._blob

    def own(self, piece: int) -> Any:
        return self._sent(self._numbers[piece])

    def add(self, piece: int, arrived: Any, last: bool) -> Any:
        ray.compute(self._passes.add_s)
        number = self._numbers[piece] + arrived[0]
        if last:
            self._result[piece] = number
        return self._sent(number)

    def keep(self, piece: int, arrived: Any) -> Any:
        ray.compute(self._passes.copy_s)
        self._result[piece] = arrived[0]
        return self._sent(arrived[0])

    def right(self) -> bool:
        right = np.array_equal(self._result, sums(self._members, len(self._result)))
        self._result[:] = 0
        return bool(right)


class Member:
    """An actor of the ring."""

    def __init__(
        self, member: int, members: int, pieces: int, nbytes: int, passes: Passes | None
    ) -> None:
        """With `passes` the vector is a virtual one; None: it is real."""
        sizes = member, members, pieces, nbytes
        self._vector: Vector = (
            RealVector(*sizes) if passes is None else VirtualVector(*sizes, passes)
        )

    def send(self, piece: int) -> Any:
        """Return a piece of the member's own numbers."""
        return self._vector.own(piece)

    def add(self, piece: int, arrived: Any, last: bool) -> Any:
        """Return the sum of what has arrived and the member's own; the last one is complete."""
        return self._vector.add(piece, arrived, last)

    def pass_on(self, piece: int, arrived: Any) -> Any:
        """Keep a complete piece, and return it for the next member."""
        return self._vector.keep(piece, arrived)

    def take(self, piece: int, arrived: Any) -> None:
        """Keep a complete piece that has been everywhere."""
        self._vector.keep(piece, arrived)

    def right(self) -> bool:
        """Return whether the result was the sum of all, and forget it."""
        return self._vector.right()


class Ring:
    """The actors of a ring, one on each node; each takes its node's CPU."""

    def __init__(
        self, members: int, pieces: int, nbytes: int, passes: Passes | None = None
    ) -> None:
        """Make the actors, with vectors of `nbytes` bytes, of `pieces` pieces to a chunk; virtual
        ones if there are `passes`."""
        self.pieces = pieces
        self._members = [
            ray.remote(num_cpus=1, resources={f"node:{member}": 0.001})(Member).remote(
                member, members, pieces, nbytes, passes
            )
            for member in range(members)
        ]
        ray.get([member.right.remote() for member in self._members])

    @property
    def rounds(self) -> int:
        """How many rounds of calls an allreduce is."""
        return 2 * len(self._members) - 1

    def allreduce(self) -> float:
        """Add up all vectors; return the seconds from the first call to the end of the last."""
        count = len(self._members)
        begun_s = ray.now()
        sent: dict[tuple[int, int], Any] = {}
        """By the sender, and the number of the piece in its chunk."""
        for number in range(self.rounds):
            received: dict[tuple[int, int], Any] = {}
            for part in range(self.pieces):
                for index, member in enumerate(self._members):
                    # In each round a member gets what the one before it got in the round before.
                    piece = (index - number) % count * self.pieces + part
                    arrived = sent.get(((index - 1) % count, part))
                    if number == 0:
                        ref = member.send.remote(piece)
                    elif number < count:
                        ref = member.add.remote(piece, arrived, number == count - 1)
                    elif number < self.rounds - 1:
                        ref = member.pass_on.remote(piece, arrived)
                    else:
                        ref = member.take.remote(piece, arrived)
                    received[index, part] = ref
            sent = received
        ray.get(list(sent.values()))
        return ray.now() - begun_s

    def right(self) -> bool:
        """Return whether every member had the sum of all since the last time, and forget them."""
        return all(ray.get([member.right.remote() for member in self._members]))

    def end(self) -> None:
        """End the actors, and free their vectors."""
        for member in self._members:
            ray.kill(member)
