"""A state machine's whole state as bytes, and back: for snapshots.

`dump` walks an object graph of the control plane and writes it as msgpack; `load` makes
the graph again. There is no list of fields, so none can be missing from it: `dump` raises
TypeError for a value that cannot be state.

Rules
-----
* Values are None, bool, int, float, str, bytes, members of the control plane's
  enums, its frozen structs, and lists, tuples, dicts, sets and deques of values,
  in their order. A set is written sorted: its order is no state, and no component
  may send in the order of one.
* Objects are instances of the classes in `StateTypes`, msgspec structs among them. A
  snapshot names a class by its own name, not by its module, so a file may move without
  breaking stored snapshots. A class that is not registered raises TypeError.
* The snapshot has an object's attributes, never its code; `load` makes instances
  without calling their constructors, except that structs are plain data.
* A container or an instance that is reachable twice stays one object; an
  immutable value (a tuple, a frozen struct) may become two. A bound method is written as its
  instance and its name.
* *Anchors* are objects that exist on both sides already (a context, the
  configuration): the snapshot has their names only.
* An attribute named in `TRANSIENT` is not state but made by the constructor.

Cost: 0.5 to 1 microseconds a value; a dict of bytes to bytes, however large, is
written by msgspec in one piece.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import MethodType, ModuleType
from typing import Any

import msgspec

HOME = "raytwin.runtime.control."
TRANSIENT = frozenset({"_handlers", "node_index", "policy"})

(
    _LIST, _TUPLE, _DICT, _SET, _DEQUE, _OBJECT, _AGAIN, _ANCHOR, _PLAIN, _COUNTER, _METHOD,
    _MEMBER, _FROZEN,
) = range(13)  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

_LEAVES = frozenset({type(None), bool, int, float, str, bytes})


class StateTypes:
    """The classes that a snapshot may name: those in the loaded modules of the given packages.

    Raises ValueError if two of them have one name.
    """

    def __init__(self, *packages: ModuleType) -> None:
        self._by_name: dict[str, type] = {}
        for package in packages:
            self._add_all(package)

    def _add_all(self, module: ModuleType) -> None:
        for found in list(vars(module).values()):
            if isinstance(found, type) and found.__module__.startswith(HOME):
                self.add(found)
            elif isinstance(found, ModuleType) and found.__name__.startswith(module.__name__ + "."):
                self._add_all(found)

    def add(self, cls: type) -> None:
        """Register one class."""
        if self._by_name.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(f"two classes of the state are named {cls.__name__}")

    def name_of(self, cls: type) -> str:
        """Return the name of a class; raises TypeError if it is not registered."""
        if self._by_name.get(cls.__name__) is not cls:
            raise TypeError(f"{cls.__module__}.{cls.__qualname__} is not registered as state")
        return cls.__name__

    def class_of(self, name: str) -> type:
        """Return the class of a name; raises TypeError if none is registered."""
        found = self._by_name.get(name)
        if found is None:
            raise TypeError(f"the snapshot names {name}, which is not registered as state")
        return found


def dump(root: Any, anchors: Mapping[str, Any], types: StateTypes) -> bytes:
    """Return the state of `root`; raises TypeError for a value that cannot be state."""
    return _encode(_Writer(anchors, types).write(root))


def load(
    data: bytes,
    anchors: Mapping[str, Any],
    types: StateTypes,
    known: Mapping[str, Any] | None = None,
) -> Any:
    """Return the dumped object; raises TypeError for a class that is not in `types`.

    `known` maps names of anchors to objects of this side whose attributes are
    to be set from the dump: see `adopt`.
    """
    return _Reader(anchors, types, known or {}).read(_decode(data))


def adopt(name: str) -> str:
    """Return the anchor name under which `dump` writes an object's attributes.

    Such an anchor exists on both sides, but its attributes are state: the
    components of a machine, which their constructors have wired up.
    """
    return f"+{name}"


@cache
def _fields(cls: type) -> tuple[str, ...] | None:
    """Return the attributes of a class with slots or a struct; None: see `__dict__`."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    slots: list[str] = []
    for base in cls.__mro__[:-1]:
        if "__slots__" not in base.__dict__:
            return None
        names = base.__dict__["__slots__"]
        slots += [names] if isinstance(names, str) else names
    return tuple(sorted(slots))


@cache
def _is_enum(cls: type) -> bool:
    return issubclass(cls, Enum)


@cache
def _is_frozen(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) and cls.__struct_config__.frozen


class _Writer:
    def __init__(self, anchors: Mapping[str, Any], types: StateTypes) -> None:
        self._anchors = {id(anchor): name for name, anchor in anchors.items()}
        self._name_of = cache(types.name_of)
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if kind is tuple:
            return [_TUPLE, *map(self.write, value)]
        if kind is MethodType:
            return [_METHOD, self.write(value.__self__), value.__name__]
        seen = self._seen.get(id(value))
        if seen is not None:
            return [_AGAIN, seen]
        anchor = self._anchors.get(id(value))
        if anchor is not None and not anchor.startswith("+"):
            return [_ANCHOR, anchor]
        fixed = self._write_fixed(value, kind)
        if fixed is not None:
            return fixed
        self._seen[id(value)] = len(self._kept)
        self._kept.append(value)  # a freed object's id could be used again
        if kind is list:
            return [_LIST, *map(self.write, value)]
        if kind is dict:
            return [_PLAIN, value] if _is_plain(value) else [_DICT, *self._pairs(value)]
        if kind is set:
            return [_SET, *map(self.write, sorted(value))]
        if kind is deque:
            return [_DEQUE, value.maxlen, *map(self.write, value)]
        if kind is Counter:
            return [_COUNTER, *self._pairs(value)]
        return self._write_object(value, kind, anchor)

    def _pairs(self, mapping: dict[Any, Any]) -> list[Any]:
        flat = []
        for key, value in mapping.items():
            flat.append(self.write(key))
            flat.append(self.write(value))
        return flat

    def _write_fixed(self, value: Any, kind: type) -> list[Any] | None:
        """Write an immutable value, which needs no identity; return None for any other."""
        if _is_enum(kind):
            return [_MEMBER, self._name_of(kind), value.value]
        if _is_frozen(kind):
            fields = _fields(kind) or ()
            return [_FROZEN, self._name_of(kind), *[self.write(getattr(value, f)) for f in fields]]
        return None

    def _write_object(self, value: Any, kind: type, anchor: str | None) -> list[Any]:
        name = anchor or self._name_of(kind)
        fields = _fields(kind)
        if fields is not None:
            return [_OBJECT, name, *[self.write(getattr(value, field)) for field in fields]]
        state = {key: v for key, v in vars(value).items() if key not in TRANSIENT}
        return [_OBJECT, name, *self._pairs(state)]


def _is_plain(mapping: dict[Any, Any]) -> bool:
    """Whether all keys and values are bytes: msgspec writes those by itself."""
    return len(mapping) > 16 and all(
        type(key) is bytes and type(value) is bytes for key, value in mapping.items()
    )


class _Reader:
    def __init__(
        self, anchors: Mapping[str, Any], types: StateTypes, known: Mapping[str, Any]
    ) -> None:
        self._anchors = anchors
        self._class_of = types.class_of
        self._known = known
        self._objects: list[Any] = []

    def read(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        code = value[0]
        read = self.read
        if code == _TUPLE:
            return tuple([read(item) for item in value[1:]])
        if code == _MEMBER:
            return self._class_of(value[1])(value[2])
        if code == _FROZEN:
            return self._class_of(value[1])(*[read(item) for item in value[2:]])
        if code == _METHOD:
            return getattr(read(value[1]), value[2])
        if code == _AGAIN:
            return self._objects[value[1]]
        if code == _ANCHOR:
            return self._anchors[value[1]]
        if code == _OBJECT:
            return self._read_object(value)
        made: Any
        if code == _PLAIN:
            made = value[1]
            self._objects.append(made)
        elif code == _LIST:
            made = []
            self._objects.append(made)
            made += [read(item) for item in value[1:]]
        elif code == _SET:
            made = set()
            self._objects.append(made)
            made.update([read(item) for item in value[1:]])
        elif code == _DEQUE:
            made = deque(maxlen=value[1])
            self._objects.append(made)
            made += [read(item) for item in value[2:]]
        else:
            made = {} if code == _DICT else Counter()
            self._objects.append(made)
            for at in range(1, len(value), 2):
                key = read(value[at])
                made[key] = read(value[at + 1])
        return made

    def _read_object(self, value: list[Any], existing: Any = None) -> Any:
        """Make an instance; or fill `existing`, which its owner's constructor made.

        So handlers that the constructor has bound to such a part stay valid.
        """
        name = value[1]
        if name.startswith("+"):
            made = self._known[name[1:]]
            cls: type = type(made)
        else:
            cls = self._class_of(name)
            made = None
            if not issubclass(cls, msgspec.Struct):
                made = existing if type(existing) is cls else object.__new__(cls)
        number = len(self._objects)
        self._objects.append(made)
        if made is None:
            made = self._objects[number] = cls(*[self.read(item) for item in value[2:]])
            return made
        fields = _fields(cls)
        if fields is not None:
            for field, item in zip(fields, value[2:], strict=True):
                setattr(made, field, self.read(item))
            return made
        state = vars(made)
        for at in range(2, len(value), 2):
            item = value[at + 1]
            if type(item) is list and item[0] == _OBJECT:
                state[value[at]] = self._read_object(item, state.get(value[at]))
            else:
                state[value[at]] = self.read(item)
        return made
