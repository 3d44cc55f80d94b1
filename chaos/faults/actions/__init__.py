"""What can happen: one file an action, all of one shape.

An action has a ``name``, a ``parameters`` method that takes what a plan gives
(an object of JSON) and returns it checked, or raises ValueError with what would
be right, and ``apply``, which does it to a target now.

A new action is a new file here, and one line below; a target that it applies to
has a method of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from raytwin.chaos.faults.actions.add_node import AddNode
from raytwin.chaos.faults.actions.kill import Kill
from raytwin.chaos.faults.actions.latency import Latency
from raytwin.chaos.faults.actions.pause import Pause
from raytwin.chaos.faults.actions.remove_node import RemoveNode
from raytwin.chaos.faults.actions.restart import Restart
from raytwin.chaos.faults.actions.resume import Resume


class Action(Protocol):
    """The shape of an action."""

    name: ClassVar[str]

    @staticmethod
    def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters; raise ValueError for what is none of them."""

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""


ACTIONS: dict[str, Any] = {
    action.name: action for action in (Kill, Restart, Pause, Resume, AddNode, RemoveNode, Latency)
}
