"""A pool of processes that compute beside each other: simulations, of which none measures a time.

The kernel kills them when their parent dies; only the parent handles Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from raytwin.runtime.processes.spawn.zygote import die_with

T = TypeVar("T")

_work: Callable[..., Any]
"""The function that the pool's owner has this process call."""


@contextmanager
def forked_pool(processes: int, work: Callable[..., T]) -> Iterator[Callable[..., Future[T]]]:
    """Yield a function that has one of so many processes call `work`, and returns the future.

    Arguments and results are pickled; `work` is not. The processes are killed at the end. A future
    raises BrokenProcessPool, a RuntimeError, if one of them ends.
    """
    # Forked, so that greenlets and SimPy need not be loaded again.
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, fork, _begin, (os.getpid(), work))
    try:
        yield partial(pool.submit, _call)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin(parent_pid: int, work: Callable[..., Any]) -> None:
    global _work
    die_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _work = work


def _call(*arguments: Any) -> Any:
    return _work(*arguments)
