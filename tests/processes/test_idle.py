"""What a cluster that does nothing costs: what is not loaded is in none of its processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

DRIVER = """
import sys
import raytwin as ray

ray.init(cpus_per_node=1, object_store_memory=64 << 20)

@ray.remote
def loaded(names):
    import sys
    return [name for name in names if name in sys.modules]

assert ray.get(ray.put([1, "two", b"three"])) == [1, "two", b"three"]
print([name for name in ("asyncio", "numpy") if name in sys.modules],
      ray.get(loaded.remote(["asyncio", "numpy"])))

import numpy as np

small, large = np.arange(10), np.arange(10**6)
for array in (small, large):
    found = ray.get(ray.put(array))
    assert (found == array).all() and not found.flags.writeable
assert ray.get(ray.put([np.float64(2.5), {"a": small}]))[1]["a"].sum() == 45
ray.shutdown()
"""


def test_a_driver_without_arrays_has_no_numpy_and_nobody_asyncio() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] ['numpy']\n"
