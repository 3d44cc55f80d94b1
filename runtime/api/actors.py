"""Actors: classes whose instances live in a process of their own.

``@remote`` makes an `ActorClass` of a class; ``.remote()`` starts an actor and
returns its `ActorHandle`, whose methods' ``.remote()`` are calls. Calls of one
caller start in the order in which they were made.

An actor with ``max_restarts`` is reconstructed when its worker or node dies: its
constructor runs again, then every call that took effect before, in the same
order. Concurrent calls (``max_concurrency``) are replayed one after another in the
order of their ends, so a state that depends on how they interleaved may differ. A class
may shorten the replay with checkpoints, taken every ``checkpoint_interval`` calls::

    def __ray_save__(self):           # return the state, anything that can be pickled
        return self.total
    def __ray_restore__(self, state): # after the constructor: become that state
        self.total = state

If ``__ray_save__`` raises, or its result cannot be pickled or is longer than
512 MB, the actor keeps its last checkpoint and the worker logs one line. If
``__ray_restore__`` raises, the actor is dead, as after a constructor that raises.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import update_wrapper
from types import FunctionType
from typing import Any, NamedTuple

from raytwin.runtime.api.arguments import Parameters
from raytwin.runtime.api.backend import ObjectRef, current
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.api.ids import ActorID
from raytwin.runtime.api.modules import (
    explains_missing_attributes,
    missing_attribute,
    missing_names,
)
from raytwin.runtime.api.options import checks
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.api.options.checks import name_of, short_name, text
from raytwin.runtime.api.options.method_options import (
    NO_GENERATOR,
    STREAMING,
    ActorCall,
    checked,
    functions_of,
    options_by_kind,
)
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.messages import READY_METHOD
from raytwin.runtime.control.messages.errors import ActorDeath

ASYNC_CONCURRENCY = 1000
"""The default of ``max_concurrency`` for an actor with async methods."""
READY, TERMINATE, CALL = READY_METHOD, "__ray_terminate__", "__ray_call__"
_BUILT_IN = (READY, TERMINATE, CALL)

_DEFAULT = ActorOptions()
__getattr__ = missing_names("actor")


class ActorClassInheritanceException(TypeError):
    """A program has used an actor class as a base class."""


def method(*plain: Callable[..., Any], **options: Any) -> Any:
    """Set options of a method of an actor class: ``@method(num_returns=2)``.

    Raises ValueError for unknown options or impossible values, TypeError for values of
    the wrong type.
    """
    if plain:
        if len(plain) > 1 or options or not callable(plain[0]):
            raise TypeError("use @method or @method(option=value)")
        return plain[0]
    kept = checked(options)

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__raytwin_method__ = kept  # type: ignore[attr-defined]
        return function

    return mark


class ActorClass:
    """A class whose instances are actors: ``C.remote(x)`` instead of ``C(x)``."""

    def __init__(self, cls: type, options: ActorOptions = _DEFAULT) -> None:
        self.cls = cls
        self.actor_options = options
        self.class_name = name_of(cls)
        functions = functions_of(cls, ActorHandle)
        self.methods: dict[str, dict[str, Any]] = {
            name: {**options_by_kind(f), **getattr(f, "__raytwin_method__", {})}
            for name, f in functions.items()
        }
        self.is_async = any(
            inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f)
            for f in functions.values()
        )
        if options.checkpoint_interval:
            for hook in ("__ray_save__", "__ray_restore__"):
                if not hasattr(cls, hook):
                    raise ValueError(f"checkpoint_interval needs {self.class_name}.{hook}")
            if self.concurrency != 1:
                raise ValueError("checkpoint_interval needs an actor with max_concurrency=1")
        self.exported: tuple[bytes, object, bytes, bytes] | None = None
        """(job, scope of function IDs, ID, serialized form), set by the session that exports it."""
        self.__name__ = cls.__name__
        self.__qualname__ = cls.__qualname__
        self.__module__ = cls.__module__
        self.__doc__ = cls.__doc__

    @property
    def source(self) -> tuple[Any, str]:
        """The plain class, which a session exports, and its name in errors."""
        return self.cls, self.class_name

    @property
    def concurrency(self) -> int:
        """The number of calls that may run concurrently."""
        chosen = self.actor_options.max_concurrency
        return chosen or (ASYNC_CONCURRENCY if self.is_async else 1)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"an actor is not made directly: use {self.class_name}.remote()")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise ActorClassInheritanceException(
            f"{self.class_name} is an actor class, which has no subclasses: let a plain class"
            " inherit from a plain one, and make it an actor class with remote()"
        )

    def options(self, **given: Any) -> ActorClass:
        """Return the same class with other options; see `ActorOptions`."""
        changed = ActorClass(self.cls, self.actor_options.changed(given))
        changed.exported = self.exported
        return changed

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Start an actor; return its handle, at once.

        Raises TypeError for arguments that the constructor does not take, and
        ValueError if there is an actor of its name already.
        """
        Parameters(self.cls).check(self.class_name, args, kwargs)
        actor, ref, found = current().create_actor(self, args, kwargs, self.actor_options)
        if found:
            return ActorHandle(actor, ref, pickle.loads(found))
        return ActorHandle(actor, ref, self.description(), self.cls)

    def description(self) -> HandleDescription:
        """Return the parts of a handle that are the same for all actors of this class."""
        options = self.actor_options
        return HandleDescription(
            self.class_name, self.methods, options.max_task_retries, options.max_restarts != 0,
            max(0, options.max_pending_calls),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the plain class: a constant, a function."""
        cls = self.__dict__.get("cls")
        if cls is None or name.startswith("__") or name == "bind" or not hasattr(cls, name):
            raise missing_attribute("ActorClass", self, name)
        value = getattr(cls, name)
        if isinstance(value, FunctionType):
            # A copy: cloudpickle would find the class's own function by its name here, and send
            # the name only, so that workers would have to import its module.
            return update_wrapper(_copied(value), value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        # The whole state, since unpickling makes a class that mentions itself before it sets
        # its methods.
        return {**self.__dict__, "exported": None}

    def __repr__(self) -> str:
        return f"ActorClass({self.class_name})"


def _copied(function: FunctionType) -> FunctionType:
    closure, defaults = function.__closure__, function.__defaults__
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, defaults, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _check_open(ref: ObjectRef) -> None:
    """Raise if the actor's cluster is gone: `current` would start another, without the actor."""
    if ref.closed:
        raise RaySystemError("the cluster of this actor is gone")


@explains_missing_attributes("ActorMethod")
class ActorMethod:
    """A method of an actor: ``handle.method.remote(...)`` calls it."""

    __slots__ = ("_call", "_parameters", "_ref")

    def __init__(self, ref: ObjectRef, call: ActorCall, parameters: Parameters) -> None:
        self._ref = ref
        """Keeps the actor alive until the call is made."""
        self._call = call
        self._parameters = parameters
        """The method's parameters, including `self`."""

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; return its `ObjectRef`.

        Returns a list of them for ``num_returns`` > 1, None for 0; an `ObjectRefGenerator`
        for a generator method and for ``num_returns="streaming"``. Raises TypeError for
        arguments that the method does not take, RaySystemError if the actor's
        cluster is gone.
        """
        if self._ref._holder.closed:
            _check_open(self._ref)
        parameters = self._parameters
        if kwargs or not parameters.least <= len(args) + 1 <= parameters.most:
            parameters.check(self._call.name, (None, *args), kwargs)
        refs = current().call_actor(self._call, args, kwargs)
        if isinstance(refs, ObjectRefGenerator):
            return refs
        return refs[0] if len(refs) == 1 else refs or None

    def options(self, **given: Any) -> ActorMethod:
        """Return the same method with other options."""
        call = replace(self._call, **checked(given))
        if call.num_returns == STREAMING and self._call.num_returns == 1:
            raise ValueError(NO_GENERATOR.format(self._call.name))
        return ActorMethod(self._ref, call, self._parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"an actor's method is not called directly: use {self._call.name}.remote()")


class HandleDescription(NamedTuple):
    """The parts of a handle that are the same for all actors of a class."""

    class_name: str
    methods: dict[str, dict[str, Any]]
    """The options of each method."""
    max_task_retries: int
    restartable: bool
    pending_max: int


class ActorHandle:
    """A caller's handle of an actor; the program may send it to tasks and other actors."""

    def __init__(
        self, actor: bytes, ref: ObjectRef, description: HandleDescription, cls: type | None = None
    ) -> None:
        self._actor = actor
        self._ref = ref
        """Keeps the actor alive, except if the handle was found by the actor's name."""
        self._description = description
        self._cls = cls

    @property
    def _actor_id(self) -> ActorID:
        return ActorID(self._actor)

    @property
    def _ray_actor_id(self) -> ActorID:
        return self._actor_id

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *self._description.methods]

    def __getattr__(self, name: str) -> ActorMethod:
        found = self.__dict__.get("_description")
        if found is None or (name not in found.methods and name not in _BUILT_IN):
            kind = None if found is None else found.class_name
            raise AttributeError(f"{kind!r} has no method {name!r}")
        options = {
            "name": f"{short_name(found.class_name)}.{name}",
            "max_task_retries": found.max_task_retries,
            **found.methods.get(name, {}),
        }
        call = ActorCall(
            self._actor, self._ref.binary(), name, restartable=found.restartable,
            pending_max=found.pending_max, **options,
        )  # fmt: skip
        made = ActorMethod(self._ref, call, Parameters(self._function(name)))
        # Cached, so that the next access does not call `__getattr__`.
        self.__dict__[name] = made
        return made

    def _function(self, name: str) -> Any:
        """Return a method's function, None if the handle does not know its parameters."""
        if self._cls is None or name in _BUILT_IN:
            return None
        static = inspect.getattr_static(self._cls, name)
        return None if isinstance(static, (staticmethod, classmethod)) else static

    def __reduce__(self) -> Any:
        return ActorHandle, (self._actor, self._ref, self._description)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._actor == self._actor

    def __hash__(self) -> int:
        return hash(self._actor)

    def __repr__(self) -> str:
        return f"Actor({self._description.class_name}, {self._actor.hex()})"


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return a handle of a named actor, which does not keep the actor alive.

    Raises ValueError if there is no such actor or the namespace is empty, TypeError for a
    namespace that is no string.
    """
    if not isinstance(name, str) or not name:
        raise ValueError("get_actor takes the actor's name")
    name, namespace = text("name", name), checks.namespace(namespace)
    found = current().find_actor(name, namespace)
    if found is None:
        raise ValueError(f"there is no actor named {name!r}")
    actor, ref, description = found
    return ActorHandle(actor, ref, pickle.loads(description))


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once, also while it runs a call.

    With ``no_restart=False`` the actor starts again if it has restarts left.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill takes an actor's handle, not {actor!r}; to end a task use cancel")
    _check_open(actor._ref)
    current().kill_actor(actor._actor, not no_restart)


class ActorExit(BaseException):
    """Ends an actor: `exit_actor` raises it, and the worker that runs the call catches it."""

    def __init__(self, why: ActorDeath) -> None:
        super().__init__(why)
        self.why = why


def exit_actor() -> None:
    """End the calling actor gracefully and for good.

    The actor answers earlier calls; this call and later ones raise ActorDiedError.
    Raises TypeError outside of an actor.
    """
    current().exit_actor()
