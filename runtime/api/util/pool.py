"""``multiprocessing.Pool`` on a cluster: calls are tasks, in chunks.

A pool of n has n *slots*. Chunks go to the slots in turn, and each depends on
the one before it in its slot (on a second return value that is always None), so
that at most n run at once wherever the cluster has room for them. Nothing of it
is a thread or a process of its own; it behaves alike in real and virtual time.

The initializer runs once in each worker process that the pool's tasks come to.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from multiprocessing import JoinableQueue as JoinableQueue
from multiprocessing import TimeoutError as TimeoutError
from typing import Any

from raytwin.runtime.api.calls import cancel, get, now, wait
from raytwin.runtime.api.current import current
from raytwin.runtime.api.lifecycle import cluster_resources, init, is_initialized
from raytwin.runtime.api.modules import refuser, says_what_is_missing
from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.api.remote_function import RemoteFunction, remote
from raytwin.runtime.api.runtime_context import get_runtime_context
from raytwin.runtime.api.util.pool_outcomes import Outcome, Outcomes

__getattr__ = refuser("util.multiprocessing")
__path__: list[str] = []

CHUNKS_PER_SLOT = 4
"""Into how many chunks per slot `map` divides its work, unless told."""

_initialized: set[tuple[str, str]] = set()
"""(pool, worker process): in virtual time many of these share one real process."""

Callback = Callable[[Any], object]
ErrorCallback = Callable[[BaseException], object]


def run_chunk(
    pool: str,
    initializer: Callable[..., Any] | None,
    initargs: tuple[Any, ...],
    function: Callable[..., Any],
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
    before: Any,
) -> tuple[Outcomes, None]:
    """Run a chunk of calls in a worker; the task of every pool."""
    key = (pool, get_runtime_context().get_worker_id())
    if initializer is not None and key not in _initialized:
        initializer(*initargs)
        _initialized.add(key)
    outcomes: list[Outcome] = []
    for args, kwargs in calls:
        try:
            outcomes.append((True, function(*args, **kwargs)))
        except Exception as error:
            outcomes.append((False, error))
    return Outcomes(outcomes), None


# By another name than the function's own, which workers import.
_CHUNK = remote(num_returns=2, name="pool_chunk")(run_chunk)


@says_what_is_missing("AsyncResult")
class AsyncResult:
    """The result of `apply_async` (one value) or `map_async` (a list)."""

    def __init__(
        self,
        chunks: list[ObjectRef],
        single: bool,
        callback: Callback | None,
        error_callback: ErrorCallback | None,
    ) -> None:
        """One of the call-backs is called once all is done, and has returned before `get` does."""
        self._chunks = chunks
        self._single = single
        self._called = threading.Event()
        self._caller = 0
        """The thread that calls back: it does not wait for itself."""
        if chunks and (callback is not None or error_callback is not None):
            self._call_back(callback, error_callback)
        else:
            self._called.set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all is done, or for ``timeout`` seconds."""
        end_s = None if timeout is None else now() + timeout
        if self._chunks:
            wait(self._chunks, num_returns=len(self._chunks), timeout=timeout)
        if self._caller != threading.get_ident():
            self._called.wait(None if end_s is None else max(0.0, end_s - now()))

    def ready(self) -> bool:
        """Whether all is done."""
        if not self._called.is_set() and self._caller != threading.get_ident():
            return False
        count = len(self._chunks)
        return not count or len(wait(self._chunks, num_returns=count, timeout=0)[0]) == count

    def successful(self) -> bool:
        """Whether no call raised. Raises ValueError while not all is done."""
        if not self.ready():
            raise ValueError("it is not done yet")
        return all(ok for chunk in get(self._chunks) for ok, _ in chunk)

    def get(self, timeout: float | None = None) -> Any:
        """Return the value or values, or raise the first exception of a call.

        Raises multiprocessing.TimeoutError.
        """
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        return self._value()

    def _value(self) -> Any:
        values = [_value(outcome) for chunk in get(self._chunks) for outcome in chunk]
        return values[0] if self._single else values

    def _call_back(self, callback: Callback | None, error_callback: ErrorCallback | None) -> None:
        """Call one of them once all is done; where programs have one thread that is waited for.

        Else each is called in a thread of its own: it may wait for others.
        """
        one_thread = current().one_thread
        missing = len(self._chunks)
        futures: list[Future[Any]] = []

        def done(_: object) -> None:
            nonlocal missing
            missing -= 1
            if missing:
                return
            call = partial(self._call, futures, callback, error_callback)
            # While the interpreter ends no other thread would come to it.
            if one_thread or not threading.main_thread().is_alive():
                call()
            else:
                threading.Thread(target=call, name="raytwin-pool", daemon=True).start()

        for chunk in self._chunks:
            futures.append(chunk.future())
            futures[-1].add_done_callback(done)

    def _call(
        self,
        futures: list[Future[Any]],
        callback: Callback | None,
        error_callback: ErrorCallback | None,
    ) -> None:
        self._caller = threading.get_ident()
        try:
            try:
                for future in futures:
                    # One that was given up may never have a value to wait for.
                    future.result()
                value = self._value()
            except Exception as error:
                if error_callback is not None:
                    error_callback(error)
            else:
                if callback is not None:
                    callback(value)
        finally:
            self._called.set()


def _value(outcome: Outcome) -> Any:
    ok, value = outcome
    if not ok:
        raise value
    return value


class IMapIterator:
    """The values of `imap` or `imap_unordered`."""

    def __init__(self, pool: Pool, submit: Iterator[ObjectRef], ordered: bool) -> None:
        self._ahead = 2 * pool.processes
        self._submit = submit
        self._ordered = ordered
        self._chunks: list[ObjectRef] = []
        self._values: deque[Outcome] = deque()

    def __iter__(self) -> IMapIterator:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next value, or raise what its call did.

        Raises multiprocessing.TimeoutError, and StopIteration at the end.
        """
        while not self._values:
            room = self._ahead - len(self._chunks)
            self._chunks += itertools.islice(self._submit, room)
            if not self._chunks:
                raise StopIteration
            among = self._chunks[:1] if self._ordered else self._chunks
            ready, _ = wait(among, num_returns=1, timeout=timeout)
            if not ready:
                raise TimeoutError
            self._chunks.remove(ready[0])
            self._values.extend(get(ready[0]))
        return _value(self._values.popleft())


@says_what_is_missing("Pool")
class Pool:
    """Runs functions in a pool of ``processes`` at once; see `multiprocessing.pool.Pool`.

    Starts a cluster if there is none. ``processes`` is at most the number of
    the cluster's CPUs, and that by default. ``ray_remote_args`` are options of
    the tasks. Raises ValueError for an impossible number of processes, and for
    ``maxtasksperchild``: workers belong to the cluster.
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
            raise ValueError("raytwin's Pool has no maxtasksperchild: workers are the cluster's")
        if context is not None:
            raise ValueError("raytwin's Pool has no context: its processes are the cluster's")
        if not is_initialized():
            init(ray_address)
        most = int(cluster_resources().get("CPU", 0))
        self.processes = most if processes is None else processes
        if not 1 <= self.processes <= most:
            raise ValueError(
                f"a pool of {self.processes} processes: the cluster has {most} CPUs, and"
                " 1 is the least"
            )
        if initializer is not None and not callable(initializer):
            raise TypeError(f"the initializer is a function, not {initializer!r}")
        self._initializer = initializer
        self._initargs = tuple(initargs or ())
        self._id = uuid.uuid4().hex
        self._task: RemoteFunction = _CHUNK.options(**(ray_remote_args or {}))
        self._slots: list[Any] = [None] * self.processes
        self._turn = 0
        self._chunks: list[ObjectRef] = []
        self._looked_at = 4 * self.processes
        """So many chunks may be there before they are looked at again."""
        self._closed = False

    def _submit(
        self, function: Callable[..., Any], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> ObjectRef:
        if self._closed:
            raise ValueError("Pool not running")
        slot = self._turn % self.processes
        self._turn += 1
        before = self._slots[slot]
        if before is not None and wait([before], num_returns=1, timeout=0)[0]:
            before = None  # nothing to wait for, and no error of its own to pass on
        chunk, self._slots[slot] = self._task.remote(
            self._id, self._initializer, self._initargs, function, calls, before
        )
        self._chunks.append(chunk)
        if len(self._chunks) > self._looked_at:
            # What is done need not be waited for in `join`. Seldom: it looks at all of them.
            count = len(self._chunks)
            self._chunks = wait(self._chunks, num_returns=count, timeout=0)[1]
            self._looked_at = max(4 * self.processes, 2 * len(self._chunks))
        ref: ObjectRef = chunk
        return ref

    def _submit_all(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], chunksize: int
    ) -> Iterator[ObjectRef]:
        coming = iter(calls)
        while args := list(itertools.islice(coming, chunksize)):
            yield self._submit(function, [(one, {}) for one in args])

    def _map(
        self,
        function: Callable[..., Any],
        calls: list[tuple[Any, ...]],
        chunksize: int | None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        self._check(function, chunksize)
        if chunksize is None:
            chunksize = -(-len(calls) // (self.processes * CHUNKS_PER_SLOT)) or 1
        chunks = list(self._submit_all(function, calls, chunksize))
        return AsyncResult(chunks, False, callback, error_callback)

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
        """Start a call; one of the call-backs is called with what became of it."""
        self._check(func)
        chunk = self._submit(func, [(tuple(args), dict(kwargs or {}))])
        return AsyncResult([chunk], True, callback, error_callback)

    def map(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Return ``[func(x) for x in iterable]``."""
        found: list[Any] = self.map_async(func, iterable, chunksize).get()
        return found

    def map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Start a `map`."""
        return self._map(func, [(x,) for x in iterable], chunksize, callback, error_callback)

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Return ``[func(*x) for x in iterable]``."""
        found: list[Any] = self.starmap_async(func, iterable, chunksize).get()
        return found

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Start a `starmap`."""
        return self._map(func, [tuple(x) for x in iterable], chunksize, callback, error_callback)

    def imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Yield ``func(x)`` in order; the iterable is read as room comes."""
        self._check(func, chunksize)
        calls = self._submit_all(func, ((x,) for x in iterable), chunksize)
        return IMapIterator(self, calls, ordered=True)

    def imap_unordered(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Yield ``func(x)`` as the values come."""
        self._check(func, chunksize)
        calls = self._submit_all(func, ((x,) for x in iterable), chunksize)
        return IMapIterator(self, calls, ordered=False)

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True

    def terminate(self) -> None:
        """Take no more calls, and take back those that are not done."""
        self._closed = True
        for chunk in self._chunks:
            cancel(chunk)

    def join(self) -> None:
        """Wait until all calls are done. Raises ValueError while the pool takes more."""
        if not self._closed:
            raise ValueError("Pool is still running")
        if self._chunks:
            wait(self._chunks, num_returns=len(self._chunks))

    def __enter__(self) -> Pool:
        self._check(print)
        return self

    def __exit__(self, *exc: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("a pool stays with the program that has made it")
