"""The node manager's table of handlers: complete, without doubles, and as its page shows it."""

from __future__ import annotations

import re

import pytest

from raytwin.runtime.control import node as page
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Handlers, handlers_of
from raytwin.runtime.control.messages import TakenBack
from raytwin.runtime.control.node.node_manager import NodeManager
from tests.control.alone import Alone


def handled() -> set[str]:
    node = NodeManager(Alone(), 0, {"CPU": 1}, Config())
    return {kind.__name__ for kind in node.messages}


def test_the_packages_page_lists_every_message_that_a_node_handles_once() -> None:
    table = re.split(r"^=+ =+$", page.__doc__ or "", flags=re.MULTILINE)[2]
    listed = re.findall(r"\w+", re.sub("`.*?`|itself", "", table))
    assert sorted(listed) == sorted(handled())


def test_two_handlers_for_one_message_are_refused() -> None:
    class Part:
        def handlers(self) -> Handlers:
            return {TakenBack: lambda source, message: None}

    with pytest.raises(AssertionError, match="TakenBack has two handlers"):
        handlers_of(Part(), Part())
