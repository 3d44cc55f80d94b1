"""The cost of an idle cluster: its processes have loaded only the modules they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DRIVER = """
import sys
import raytwin as ray
from raytwin.runtime.api.backend import current

ray.init(cpus_per_node=1, object_store_memory=64 << 20)

@ray.remote
def loaded(names):
    import sys
    return [name for name in names if name in sys.modules]

def mapped(pid):
    with open(f"/proc/{pid}/maps") as file:
        maps = file.read()
    return [name for name in ("numpy", "libcrypto", "libsqlite3", "libbz2") if name in maps]

assert ray.get(ray.put([1, "two", b"three"])) == [1, "two", b"three"]
HEAVY = ["asyncio", "email", "hypothesis", "importlib.resources", "multiprocessing", "sqlite3",
         "ssl", "raytwin.simulator", "simpy", "unittest"]
MORE = [*HEAVY, "_hashlib", "numpy", "numpy.random"]
print([name for name in MORE if name in sys.modules], ray.get(loaded.remote(MORE)))
pids = current().cluster.pids
print(mapped(pids["head"]), mapped(pids["node:0"]))

import numpy as np

small, large = np.arange(10), np.arange(10**6)
for array in (small, large):
    found = ray.get(ray.put(array))
    assert (found == array).all() and not found.flags.writeable
assert ray.get(ray.put([np.float64(2.5), {"a": small}]))[1]["a"].sum() == 45
ray.shutdown()
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_process_has_loaded_what_it_does_not_need() -> None:
    drivers_and_workers, heads_and_nodes = run(DRIVER).splitlines()
    assert drivers_and_workers == "[] []"
    assert heads_and_nodes == "[] []"


LATER = """
import raytwin as ray

ray.init(cpus_per_node=1, object_store_memory=64 << 20)

@ray.remote(num_cpus=0)
class Reader:
    def loaded(self):
        import sys

        return "numpy" in sys.modules

    def load(self):
        import numpy

print(ray.get(Reader.remote().loaded.remote()))
loader = Reader.remote()
ray.get(loader.load.remote())
print(ray.get(loader.loaded.remote()), ray.get(Reader.remote().loaded.remote()))
ray.shutdown()
"""


def test_later_workers_inherit_modules_that_one_has_loaded() -> None:
    assert run(LATER) == "False\nTrue True\n"


RANDOM = """
import raytwin as ray

ray.init(cpus_per_node=1, object_store_memory=64 << 20)

@ray.remote(num_cpus=0)
class Dice:
    def roll(self):
        import random
        import sys

        there = "numpy.random" in sys.modules
        import numpy as np

        return there, random.random(), np.random.random()

dice = [Dice.remote() for _ in range(3)]
rolls = ray.get([each.roll.remote() for each in dice])
print(*{there for there, _, _ in rolls}, *(len(set(found)) for found in list(zip(*rolls))[1:]))
ray.shutdown()
"""


@pytest.mark.parametrize(("first", "loaded"), [("", "False"), ("import numpy\n", "True")])
def test_workers_draw_different_numbers_wherever_the_generator_is_loaded(
    first: str, loaded: str
) -> None:
    assert run(first + RANDOM) == f"{loaded} 3 3\n"
