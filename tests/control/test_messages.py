"""The page of the protocol lists every message with its senders."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from typing import get_args

import msgspec

from raytwin.runtime.control import messages

MODULES = [
    import_module(f"{messages.__name__}.{module.name}")
    for module in pkgutil.iter_modules(messages.__path__)
    if module.name != "errors"  # Failures are data in messages, with tags of their own.
]
STRUCTS = [
    thing
    for module in MODULES
    for thing in vars(module).values()
    if isinstance(thing, type)
    and issubclass(thing, msgspec.Struct)
    and thing.__module__ == module.__name__
]
MESSAGES = [struct for struct in STRUCTS if struct.__struct_config__.tag is not None]


def table() -> set[str]:
    """Return the names in the rows of who speaks with whom."""
    text = messages.__doc__ or ""
    rows = re.findall(r"(?m)^\S.*?-> .*(?:\n {10,}.*)*", text)
    return {name for row in rows for name in re.findall(r"\b[A-Z]\w+", row)}


def test_every_message_can_be_received() -> None:
    assert set(get_args(messages.Message)) == set(MESSAGES)


def test_no_tag_has_two_messages() -> None:
    tags = [struct.__struct_config__.tag for struct in MESSAGES]
    assert len(set(tags)) == len(tags)


def test_no_name_is_given_twice() -> None:
    """A name that two modules give would stand for whichever is imported last."""
    names = [struct.__name__ for struct in STRUCTS]
    assert len(set(names)) == len(names)
    assert all(getattr(messages, struct.__name__) is struct for struct in STRUCTS)


def test_the_table_has_every_message_and_nothing_else() -> None:
    assert table() == {struct.__name__ for struct in MESSAGES}
