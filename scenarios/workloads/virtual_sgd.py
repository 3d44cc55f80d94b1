"""The arithmetic of `applications.sgd` in virtual time: a small network stands for a large one.

The numbers are those of the small network, so losses and sums are real. Each number claims the
bytes of several, and passing a layer, adding it and changing its weights take the time of a large
one.
"""

from __future__ import annotations

from typing import Any

import raytwin as ray

FORWARD_SHARE = 1 / 3
"""Of a step's time: going backwards is two products of matrices a layer, going forwards one."""


class VirtualArithmetic:
    """How gradients and weights travel, and what time they take."""

    def __init__(
        self,
        layers: int,
        step_s: float,
        bytes_per_number: float,
        add_byte_s: float,
        change_byte_s: float,
    ) -> None:
        """`step_s`: of a replica, forwards and backwards. A core takes `add_byte_s` for each byte
        of gradients that it adds, and `change_byte_s` for each byte of weights that it changes."""
        self._forward_s = step_s * FORWARD_SHARE / layers
        self._backward_s = step_s * (1 - FORWARD_SHARE) / layers
        self._bytes_per_number = bytes_per_number
        self._add_byte_s = add_byte_s
        self._change_byte_s = change_byte_s

    def pack(self, array: Any) -> Any:
        """Return the array and what its bytes would be."""
        return array, ray.Blob(round(array.size * self._bytes_per_number))

    def unpack(self, value: Any) -> Any:
        """Return the array that has travelled."""
        return value[0]

    def passed(self, backwards: bool) -> None:
        """Take the time of a layer."""
        ray.compute(self._backward_s if backwards else self._forward_s)

    def added(self, array: Any) -> None:
        """Take the time of a sum."""
        ray.compute(array.size * self._bytes_per_number * self._add_byte_s)

    def stepped(self, array: Any) -> None:
        """Take the time of a step along gradients."""
        ray.compute(array.size * self._bytes_per_number * self._change_byte_s)
