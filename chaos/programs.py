"""Random programs against the public API, and what a sequential run makes of them.

A program is data (see `bodies`): a `Body` is a list of operations on variables, a `Call` in
it is a task, which may have a body of its own. `run_body` interprets a body over an
*engine*: `Api` submits, gets, puts and waits through `runtime.api`, as a driver
or within a task; `Sequential` runs each task in place, in plain Python, and is
the oracle. So the two cannot differ in what the program means.

Every value is an integer or bytes that only the task's key and inputs decide. An
error that a task raises on purpose (`Boom`) is a value too: `get` of it, or of a
task that had it as an input, gives the same `Boom`.

A value may also be a list of references: of a put (`pack`), or what a task was lent
and has made (`Call.gives`). Its digest is that of what they lead to, however deep.

What the driver saw is a list of outcomes, one for each value that it asked for;
an outcome is the value's digest, a `Boom`, or the exception that came instead.

Actors with state are called by the driver, by tasks and by other actors' calls, which are
handed them; see `Told`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import runtime.api as api
from chaos.bodies import HANDED, Body, Call, Gatherer, Handing, SumUp, Teller
from runtime.api.exceptions import RayTaskError
from runtime.control.config import Config

LARGE_BYTES = Config().inline_bytes_max + 100
"""Just too large to ride in a message."""
DEPTH_MAX = 2
RETRIES = (0, 1, 3, 3, 3, -1)
put_here: set[str] = set()
"""Objects that no task makes: what programs have put in this process, and results
of actors' calls. In a simulation all of them."""
told_here: dict[str, Teller] = {}
"""Of results of actors' calls, and of the calls' names: which actor's."""


class Boom(Exception):
    """What tasks raise on purpose."""

    def __init__(self, key: int) -> None:
        super().__init__(key)
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boom) and other.key == self.key

    def __hash__(self) -> int:
        return hash((Boom, self.key))


# -- values ------------------------------------------------------------------------


def mix(*parts: int) -> int:
    """Return a number that all parts decide."""
    return zlib.crc32(b",".join(b"%d" % part for part in parts))


def forget() -> None:
    """Begin a program: what others have made does not count any more."""
    put_here.clear()
    told_here.clear()
    _started.clear()


def make(number: int, nbytes: int) -> Any:
    """Return the value that a number and a size stand for."""
    return number.to_bytes(8, "big") * (-(-nbytes // 8)) if nbytes else number


def digest(value: Any) -> int:
    """Return a number that the value decides."""
    if isinstance(value, Boom):
        return mix(7, value.key)
    if isinstance(value, list):
        return mix(8, *map(digest, value))
    return value if isinstance(value, int) else zlib.crc32(value)


def task_name(call: Call) -> str:
    """Return the task's name, by which errors call it."""
    return f"k{call.key}r{call.retries}"


def actor_name(teller: Teller) -> str:
    """Return the actor's class, by which errors call it."""
    return f"a{teller.key}r{teller.restarts}"


def run_task(
    engine: Any,
    call: Call,
    inputs: Sequence[Any],
    lent: Sequence[Any],
    actors: Sequence[Any] = (),
) -> Any:
    """What every task does."""
    engine.sleep(call.seconds)
    digests = [digest(engine.follow(value)) for value in inputs]
    digests += [digest(engine.get(ref)) for ref in lent]
    if call.body is not None:
        digests += [digest(outcome) for outcome in run_body(engine, call.body, actors)]
    number = mix(call.key, *digests)
    if call.fails:
        raise Boom(number)
    if call.gives:
        put = engine.put(make(number, call.nbytes))
        made = engine.call(Call(call.key, nbytes=call.nbytes, retries=call.retries), [])
        return [*lent, put, made]
    if call.parts:
        return parts_of(call, number)
    return make(number, call.nbytes)


def run_body(engine: Any, body: Body, actors: Sequence[Any] = ()) -> list[Any]:
    """Interpret a body; return the outcome of each value that it asked for."""
    variables: dict[int, Any] = {HANDED - n: actor for n, actor in enumerate(actors)}
    outcomes: list[Any] = []
    for op in body.ops:
        if op.do == "call":
            variables[op.out] = engine.call(op.call, [variables[i] for i in op.ins])
        elif op.do == "lend":
            variables[op.out] = engine.lend(op.call, [variables[i] for i in op.ins])
        elif op.do == "map":
            variables[op.out] = engine.map(op.call, op.count)
        elif op.do == "actor":
            variables[op.out] = engine.actor(op.teller)
        elif op.do == "tell":
            actor, *inputs = (variables[i] for i in op.ins)
            hands = [variables[i] for i in op.hands] if isinstance(op, Handing) else []
            variables[op.out] = engine.tell(actor, op.call, inputs, hands)
        elif isinstance(op, Handing):
            inputs = [variables[i] for i in op.ins]
            hands = [variables[i] for i in op.hands]
            variables[op.out] = engine.hand(op.call, inputs, hands)
        elif op.do == "put":
            variables[op.out] = engine.put(make(mix(op.out, op.nbytes), op.nbytes))
        elif op.do == "stream":
            variables[op.out] = engine.stream(op.call, [variables[i] for i in op.ins])
        elif op.do == "take":
            variables[op.out] = variables[op.ins[0]].take()
        elif op.do == "returns":
            parts = engine.returns(op.call, [variables[i] for i in op.ins])
            variables.update(enumerate(parts, op.out))
        elif op.do == "pack":
            variables[op.out] = engine.put([variables[i] for i in op.ins])
        elif op.do == "get":
            for i in op.ins:
                outcomes += engine.outcomes(variables[i])
        elif op.do == "wait":
            engine.wait([variables[i] for i in op.ins], op.count)
        else:
            for i in op.ins:
                del variables[i]
    while variables:
        outcomes += engine.outcomes(variables.pop(min(variables)))
    return outcomes


# -- several values ----------------------------------------------------------------


def parts_of(call: Call, number: int) -> tuple[Any, ...]:
    """Return the values of a task of several."""
    return tuple(make(mix(number, part), call.nbytes) for part in range(call.parts))


def yielded(call: Call, parts: Iterable[Any], sleep: Callable[[float], None]) -> Iterator[Any]:
    """Yield the values of a stream, and raise half-way if it fails."""
    for index, part in enumerate(parts):
        if call.fails and index == call.parts // 2:
            raise Boom(mix(call.key, index))
        sleep(call.seconds)
        yield part


class Stream:
    """A variable that holds one: `items` are values, or references to them."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._last: Any = None

    def take(self) -> Any:
        """Return the next item, or the last one again."""
        self._last = next(self._items, self._last)
        return self._last

    def rest(self, outcome: Callable[[Any], Any]) -> list[Any]:
        """Return one outcome for all items that are left, or the first that is an exception.

        The last item that was taken is among them: it may be the error that ended it.
        """
        taken = [] if self._last is None else [self._last]
        outcomes = [outcome(item) for item in (*taken, *self._items)]
        strange = [o for o in outcomes if isinstance(o, Exception) and not isinstance(o, Boom)]
        return strange[:1] or [mix(9, *map(digest, outcomes))]


def in_place(call: Call, parts: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a stream that runs where it is called, an error as its last."""
    try:
        yield from yielded(call, parts, lambda seconds: None)
    except Boom as boom:
        yield boom


# -- actors ------------------------------------------------------------------------


class Told:
    """What a `Teller` starts: its state is the fold of all that it was told.

    A call that came twice, or out of turn, raises: the calls of one caller have rising
    keys. Of a `Gatherer` only one that came twice does.
    """

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.state = teller.key
        self.last = 0
        self.gathered: dict[int, int] = {}
        """What a `Gatherer` was told, by the call's key."""
        self.kept: list[Any] = []
        """What its calls have submitted and not asked for yet."""

    def tell(
        self, engine: Any, call: Call, inputs: Sequence[Any], actors: Sequence[Any] = ()
    ) -> Any:
        """Fold a call in; of an exact actor its value says all that came before."""
        engine.sleep(call.seconds)
        if isinstance(self.teller, Gatherer):
            if call.key in self.gathered:
                raise AssertionError(f"call {call.key} took effect twice")
            self.gathered[call.key] = 0
        elif call.key <= self.last:
            raise AssertionError(f"call {call.key} took effect after {self.last}")
        self.last = call.key
        digests = [digest(value) for value in inputs]
        if call.body is not None:
            digests += [digest(outcome) for outcome in run_body(engine, call.body, actors)]
        digests += [digest(engine.get(ref)) for ref in self.kept]
        if call.gives:
            # A later call asks for it, maybe in another process.
            made = Call(call.key, call.seconds, call.nbytes, retries=call.retries)
            self.kept = [engine.call(made, []), engine.put(make(call.key, call.nbytes))]
        number = mix(call.key, *digests)
        if isinstance(self.teller, Gatherer):
            self.gathered[call.key] = number
            if isinstance(call, SumUp) and self.teller.exact:
                number = mix(*(part for each in sorted(self.gathered.items()) for part in each))
        else:
            self.state = mix(self.state, number)
            if self.teller.folds:
                number = self.state
        if call.fails:
            raise Boom(number)
        return make(number, call.nbytes)


_started: dict[Any, Teller] = {}


class _Actor:
    """`Told` as an actor."""

    def __init__(self, teller: Teller) -> None:
        self.told = Told(teller)

    def tell(self, call: Call, *inputs: Any) -> Any:
        return self.told.tell(Api(), call, inputs)

    def tell_with(self, actors: Sequence[Any], call: Call, *inputs: Any) -> Any:
        return self.told.tell(Api(), call, inputs, actors)

    def __ray_save__(self) -> Any:
        if isinstance(self.told.teller, Gatherer):
            return self.told.gathered
        return self.told.state, self.told.last

    def __ray_restore__(self, state: Any) -> None:
        if isinstance(self.told.teller, Gatherer):
            self.told.gathered = state
        else:
            self.told.state, self.told.last = state


@cache
def _actor_class(teller: Teller) -> Any:
    # Errors call an actor by its class: that says how often it may restart.
    named = type(actor_name(teller), (_Actor,), {})
    return api.remote(
        num_cpus=0,
        max_restarts=teller.restarts,
        max_task_retries=teller.retries,
        checkpoint_interval=teller.interval,
    )(named)


# -- engines -----------------------------------------------------------------------


class Sequential:
    """Runs every task where it is called: the oracle."""

    def sleep(self, seconds: float) -> None:
        """Time means nothing here."""

    def call(self, call: Call, inputs: list[Any]) -> Any:
        for value in inputs:
            if isinstance(value, Boom):
                return value
        return self._run(call, inputs, [])

    def lend(self, call: Call, inputs: list[Any]) -> Any:
        return self._run(call, [], inputs)

    def hand(self, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        boom = next((value for value in inputs if isinstance(value, Boom)), None)
        return boom or self._run(call, inputs, [], actors)

    def map(self, call: Call, count: int) -> tuple[Any, ...]:
        return tuple(self._run(call, [i], []) for i in range(count))

    def stream(self, call: Call, inputs: list[Any]) -> Stream:
        parts = self.call(replace(call, fails=False), inputs)
        if isinstance(parts, Boom):
            return Stream(iter([parts]))
        return Stream(in_place(call, parts))

    def returns(self, call: Call, inputs: list[Any]) -> Sequence[Any]:
        parts = self.call(call, inputs)
        return [parts] * call.parts if isinstance(parts, Boom) else parts

    def _run(
        self, call: Call, inputs: list[Any], lent: list[Any], actors: Sequence[Any] = ()
    ) -> Any:
        try:
            return run_task(self, call, inputs, lent, actors)
        except Boom as boom:
            return boom

    def actor(self, teller: Teller) -> Any:
        return Told(teller)

    def tell(self, actor: Any, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        for value in inputs:
            if isinstance(value, Boom):
                return value
        try:
            return actor.tell(self, call, inputs, actors)
        except Boom as boom:
            return boom

    def put(self, value: Any) -> Any:
        return value

    def get(self, value: Any) -> Any:
        return value

    def follow(self, value: Any) -> Any:
        return value

    def outcomes(self, variable: Any) -> list[Any]:
        if isinstance(variable, Stream):
            return variable.rest(lambda value: self.outcomes(value)[0])
        if isinstance(variable, Told):
            return []
        values = variable if isinstance(variable, tuple) else [variable]
        return [value if isinstance(value, Boom) else digest(value) for value in values]

    def wait(self, variables: list[Any], count: int) -> None:
        """All is there."""


class Api:
    """Runs tasks through `runtime.api`.

    In a driver whatever comes instead of a value is an outcome; a task fails by it.
    """

    def __init__(self, driver: bool = False) -> None:
        self.driver = driver

    def sleep(self, seconds: float) -> None:
        if seconds:
            api.sleep(seconds)

    def call(self, call: Call, inputs: list[Any]) -> Any:
        return _options(call).remote(call, [], *inputs)

    def lend(self, call: Call, inputs: list[Any]) -> Any:
        return _options(call).remote(call, inputs)

    def hand(self, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        return _options(call, _handed).remote(call, actors, *inputs)

    def map(self, call: Call, count: int) -> Any:
        return _options(call, _element).map([call] * count, range(count))

    def stream(self, call: Call, inputs: list[Any]) -> Stream:
        return Stream(_options(call, _stream).remote(call, *inputs))

    def returns(self, call: Call, inputs: list[Any]) -> list[Any]:
        task = _options(call).options(num_returns=call.parts)
        return list(task.remote(call, [], *inputs))

    def actor(self, teller: Teller) -> Any:
        actor = _actor_class(teller).remote(teller)
        _started[actor._actor_id] = teller
        return actor

    def tell(self, actor: Any, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        name = f"t{call.key}r{call.retries}"
        if actors:
            ref = actor.tell_with.options(name=name).remote(actors, call, *inputs)
        else:
            ref = actor.tell.options(name=name).remote(call, *inputs)
        put_here.add(ref.hex())
        told_here[ref.hex()] = told_here[name] = _started[actor._actor_id]
        return ref

    def put(self, value: Any) -> Any:
        ref = api.put(value)
        put_here.add(ref.hex())
        return ref

    def get(self, ref: Any) -> Any:
        """Return the value or the `Boom` that it is; in a task, raise whatever else."""
        try:
            return self.follow(api.get(ref))
        except RayTaskError as error:
            if isinstance(error.cause, Boom):
                return error.cause
            raise

    def follow(self, value: Any) -> Any:
        """Return what the references in a value lead to."""
        return [self.get(ref) for ref in value] if isinstance(value, list) else value

    def outcomes(self, variable: Any) -> list[Any]:
        if isinstance(variable, Stream):
            return variable.rest(self._outcome)
        if isinstance(variable, api.ActorHandle):
            return []
        if not isinstance(variable, api.ObjectRefArray):
            return [self._outcome(variable)]
        try:
            return [digest(value) for value in api.get(variable)]
        except Exception:
            # One of them is no value: each on its own says which.
            return [self._outcome(ref) for ref in variable]

    def _outcome(self, ref: Any) -> Any:
        try:
            value = self.get(ref)
        except Exception as error:
            if not self.driver:
                raise
            # A traceback would keep references alive.
            return error.with_traceback(None)
        return value if isinstance(value, Boom) else digest(value)

    def wait(self, variables: list[Any], count: int) -> None:
        ready, rest = api.wait(variables, num_returns=count)
        if len(ready) != count or len(ready) + len(rest) != len(variables):
            raise AssertionError(f"wait for {count} of {len(variables)} gave {len(ready)}")


def _task(call: Call, lent: list[Any], *inputs: Any) -> Any:
    return run_task(Api(), call, inputs, lent)


def _handed_task(call: Call, actors: list[Any], *inputs: Any) -> Any:
    return run_task(Api(), call, inputs, [], actors)


def _element_task(call: Call, index: int) -> Any:
    return run_task(Api(), call, [index], [])


def _stream_task(call: Call, *inputs: Any) -> Any:
    engine = Api()
    parts = run_task(engine, replace(call, fails=False), inputs, [])
    yield from yielded(call, parts, engine.sleep)


_call = api.remote(_task)
_handed = api.remote(_handed_task)
_stream = api.remote(_stream_task)
_element = api.remote(_element_task)


def _options(call: Call, function: Any = _call) -> Any:
    return function.options(num_cpus=call.cpus, max_retries=call.retries, name=task_name(call))
