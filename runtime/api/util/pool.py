"""``multiprocessing.Pool`` on a cluster: each process is an actor, and chunks are its calls.

Chunks go to the actors in turn. The initializer runs in each actor's constructor. A pool has no
threads or processes of its own, and behaves alike in real and virtual time.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import JoinableQueue as JoinableQueue
from multiprocessing import TimeoutError as TimeoutError
from typing import Any

from raytwin.runtime.api.actors import ActorClass, kill
from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.exceptions import RayError
from raytwin.runtime.api.lifecycle import ADDRESS, cluster_resources, init, is_initialized
from raytwin.runtime.api.modules import explains_missing_attributes, missing_names
from raytwin.runtime.api.tasks import get, wait

__getattr__ = missing_names("util.multiprocessing")
__path__: list[str] = []

CHUNKS_PER_PROCESS = 4
"""The chunks per process into which `map` divides its work without a ``chunksize``."""

Callback = Callable[[Any], object]
ErrorCallback = Callable[[BaseException], object]
Outcome = tuple[bool, Any]
"""(True, value) or (False, exception) of one call."""


class PoolTaskError(Exception):
    """The error that `imap` yields in place of a value, if the call raised."""

    def __init__(self, underlying: Exception) -> None:
        """Keep what the call raised."""
        super().__init__(underlying)
        self.underlying = underlying


class _Process:
    """The actor of each process of a pool."""

    def __init__(self, initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(
        self, function: Callable[..., Any], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[Outcome]:
        """Run a chunk of calls."""
        outcomes: list[Outcome] = []
        for args, kwargs in calls:
            try:
                outcomes.append((True, function(*args, **kwargs)))
            except Exception as error:
                outcomes.append((False, error))
        return outcomes


@explains_missing_attributes("AsyncResult")
class AsyncResult:
    """The result of `apply_async` (one value) or `map_async` (a list)."""

    def __init__(
        self,
        chunks: list[ObjectRef],
        single: bool,
        callback: Callback | None,
        error_callback: ErrorCallback | None,
    ) -> None:
        """Wait for the chunks; a callback runs when all are done, before `get` returns."""
        self._chunks = chunks
        self._single = single
        self._called = threading.Event()
        if chunks and (callback is not None or error_callback is not None):
            self._call_back(callback, error_callback)
        else:
            self._called.set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all calls are done, or for ``timeout`` seconds."""
        if self._all_there(timeout):
            self._called.wait(timeout)

    def ready(self) -> bool:
        """Whether all calls are done."""
        return self._called.is_set() and self._all_there(0)

    def successful(self) -> bool:
        """Whether no call raised. Raises ValueError while a call is not done."""
        if not self.ready():
            raise ValueError("it is not done yet")
        try:
            self._value(get(self._chunks))
        except Exception:
            return False
        return True

    def get(self, timeout: float | None = None) -> Any:
        """Return the value or values, or raise the first exception of a call.

        Raises multiprocessing.TimeoutError.
        """
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        return self._value(get(self._chunks))

    def _all_there(self, timeout: float | None) -> bool:
        count = len(self._chunks)
        return not count or len(wait(self._chunks, num_returns=count, timeout=timeout)[0]) == count

    def _value(self, chunks: Iterable[list[Outcome]]) -> Any:
        values = [_value(outcome) for outcomes in chunks for outcome in outcomes]
        return values[0] if self._single else values

    def _call_back(self, callback: Callback | None, error_callback: ErrorCallback | None) -> None:
        """Have the thread that completes futures call one of the callbacks when all are done."""
        futures = [chunk.future() for chunk in self._chunks]
        left = itertools.count(len(futures) - 1, -1)

        def done(_: object) -> None:
            if next(left):
                return
            try:
                try:
                    value = self._value(future.result() for future in futures)
                except Exception as error:
                    if error_callback is not None:
                        error_callback(error)
                else:
                    if callback is not None:
                        callback(value)
            finally:
                self._called.set()

        for future in futures:
            future.add_done_callback(done)


def _value(outcome: Outcome) -> Any:
    ok, value = outcome
    if not ok:
        raise value
    return value


class IMapIterator:
    """The values of `imap` or `imap_unordered`."""

    def __init__(self, processes: int, submit: Iterator[ObjectRef]) -> None:
        self._chunks_max = 2 * processes
        self._submit = submit
        self.ordered = True
        self._chunks: list[ObjectRef] = []
        self._values: deque[Outcome] = deque()

    def __iter__(self) -> IMapIterator:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next value, a `PoolTaskError` if its call raised, or one RayError in place of
        all values of a chunk that is lost: further values follow.

        Raises multiprocessing.TimeoutError, and StopIteration at the end.
        """
        while not self._values:
            room = self._chunks_max - len(self._chunks)
            self._chunks += itertools.islice(self._submit, room)
            if not self._chunks:
                raise StopIteration
            among = self._chunks[:1] if self.ordered else self._chunks
            ready, _ = wait(among, num_returns=1, timeout=timeout)
            if not ready:
                raise TimeoutError
            self._chunks.remove(ready[0])
            try:
                self._values.extend(get(ready[0]))
            except RayError as error:
                # The chunk's actor has died, or its values cannot be sent; Ray yields that, too.
                self._values.append((True, error))
        ok, value = self._values.popleft()
        return value if ok else PoolTaskError(value)


@explains_missing_attributes("Pool")
class Pool:
    """Runs functions in a pool of ``processes``; see `multiprocessing.pool.Pool`.

    Starts a cluster with a CPU for each process if there is none to join. ``processes`` is at most
    the number of the cluster's CPUs, which is the default. ``ray_remote_args`` are options of
    the actors, which take one CPU each. Raises ValueError for an impossible number of
    processes, and for ``maxtasksperchild``: an actor lives as long as its pool.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] | None = None,
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        if maxtasksperchild is not None:
            raise ValueError("raytwin's Pool has no maxtasksperchild: its processes are actors")
        if context is not None:
            raise ValueError("raytwin's Pool has no context: its processes are actors")
        if not is_initialized():
            starts = (ray_address or os.environ.get(ADDRESS)) in (None, "", "local")
            init(ray_address, num_cpus=processes if starts else None)
        most = int(cluster_resources().get("CPU", 0))
        self.processes = most if processes is None else processes
        if not 1 <= self.processes <= most:
            raise ValueError(
                f"a pool of {self.processes} processes: the cluster has {most} CPUs, and"
                " 1 is the least"
            )
        if initializer is not None and not callable(initializer):
            raise TypeError(f"the initializer is a function, not {initializer!r}")
        process = ActorClass(_Process).options(**{"num_cpus": 1, **(ray_remote_args or {})})
        initargs = tuple(initargs or ())
        self._actors = [process.remote(initializer, initargs) for _ in range(self.processes)]
        self._last: dict[int, ObjectRef] = {}
        """The last chunk of each actor."""
        self._turn = itertools.cycle(range(self.processes))
        self._closed = False

    def _submit(
        self, function: Callable[..., Any], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> ObjectRef:
        if self._closed:
            raise ValueError("Pool not running")
        number = next(self._turn)
        chunk: ObjectRef = self._actors[number].run.remote(function, calls)
        self._last[number] = chunk
        return chunk

    def _submit_all(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], chunksize: int
    ) -> Iterator[ObjectRef]:
        coming = iter(calls)
        while args := list(itertools.islice(coming, chunksize)):
            yield self._submit(function, [(one, {}) for one in args])

    def _check(self, function: Callable[..., Any], chunksize: int | None = None) -> None:
        if self._closed:
            raise ValueError("Pool not running")
        if not callable(function):
            raise TypeError(f"{function!r} is not callable")
        if chunksize is not None and chunksize < 1:
            raise ValueError(f"a chunk of {chunksize} calls")

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwargs: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``."""
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Start a call; when it ends, one of the callbacks gets its value or its exception."""
        self._check(func)
        chunk = self._submit(func, [(tuple(args), dict(kwargs or {}))])
        return AsyncResult([chunk], True, callback, error_callback)

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Start a `starmap`."""
        self._check(func, chunksize)
        calls = [tuple(x) for x in iterable]
        if chunksize is None:
            chunksize = -(-len(calls) // (self.processes * CHUNKS_PER_PROCESS)) or 1
        chunks = list(self._submit_all(func, calls, chunksize))
        return AsyncResult(chunks, False, callback, error_callback)

    def map_async(
        self, func: Callable[..., Any], iterable: Iterable[Any], *more: Any, **named: Any
    ) -> AsyncResult:
        """Start a `map`; further arguments are those of `starmap_async`."""
        return self.starmap_async(func, ((x,) for x in iterable), *more, **named)

    def map(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Return ``[func(x) for x in iterable]``."""
        return self.map_async(func, iterable, chunksize).get()

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Return ``[func(*x) for x in iterable]``."""
        return self.starmap_async(func, iterable, chunksize).get()

    def imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Yield ``func(x)`` in order; read the iterable only as the pool takes more chunks."""
        self._check(func, chunksize)
        chunks = self._submit_all(func, ((x,) for x in iterable), chunksize)
        return IMapIterator(self.processes, chunks)

    def imap_unordered(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Yield ``func(x)`` as the values come; else as `imap`."""
        values = self.imap(func, iterable, chunksize)
        values.ordered = False
        return values

    def close(self) -> None:
        """Accept no more calls."""
        self._closed = True

    def terminate(self) -> None:
        """Accept no more calls, and kill the actors: unfinished calls fail with RayActorError."""
        self._closed = True
        for actor in self._actors:
            kill(actor)

    def join(self) -> None:
        """Wait until all calls are done. Raises ValueError before `close` or `terminate`."""
        if not self._closed:
            raise ValueError("Pool is still running")
        if self._last:
            wait(list(self._last.values()), num_returns=len(self._last))

    def __enter__(self) -> Pool:
        self._check(print)
        return self

    def __exit__(self, *exc: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("a pool stays with the program that has made it")
