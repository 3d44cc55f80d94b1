"""Python's `random` in virtual time: each simulated process has a seeded generator of its own.

On real machines every process has its own state, from the operating system's entropy. All
simulated processes share one real process, whose one state would depend on the order in which their
programs happen to draw. `install` replaces the functions of `random`: they draw from a generator of
the process whose program calls, seeded with the process's name. Python's own remain for other
threads. `random.seed` in a task is for the tasks after it on its worker, as on real processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from raytwin.runtime.api import backend
from raytwin.runtime.session.node_resources import FIRST_DRIVER


def install(seed: int) -> None:
    """Replace the functions of `random` that share a state; once in a process."""
    thread = get_ident()
    driver = random.Random(f"{seed}/{FIRST_DRIVER}")
    of_worker: WeakKeyDictionary[Any, random.Random] = WeakKeyDictionary()

    def generator() -> random.Random:
        session: Any = backend.connected()
        if session is None or session.address == FIRST_DRIVER:
            return driver
        process = session.world.process
        found = of_worker.get(process)
        if found is None:
            found = of_worker[process] = random.Random(f"{seed}/{process.name}")
        return found

    def drawing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def draw(*args: Any, **kwargs: Any) -> Any:
            return (real if get_ident() != thread else getattr(generator(), name))(*args, **kwargs)

        # As functions of the module they are pickled by name.
        draw.__qualname__, draw.__module__ = name, "random"
        return draw

    for name in random.__all__:
        real = getattr(random, name)
        if isinstance(getattr(real, "__self__", None), random.Random):
            setattr(random, name, drawing(name, real))
