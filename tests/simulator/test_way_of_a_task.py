"""The way of a warm task through the runtime, from ``f.remote(x)`` to ``get``: how many files.

Whoever follows a task through the code reads these files. A part that has nothing to do for a
task does not belong on its way, and costs time there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FILES_MAX = 36

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"

PROGRAM = """
import json, sys, threading
import greenlet
import raytwin as ray

ray.init(backend="sim", nodes=1, cpus_per_node=1)

@ray.remote
def f(x):
    return x + 1

for _ in range(3):
    ray.get(f.remote(1))
ray.sleep(0.1)  # the releases of these have left
files = {}

def profile(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and "/runtime/" in path:
        files.setdefault(path.rpartition("/runtime/")[2])

# Every greenlet has a profile function of its own.
greenlet.settrace(lambda event, greenlets: sys.setprofile(profile))
threading.setprofile(profile)
sys.setprofile(profile)
assert ray.get(f.remote(1)) == 2
sys.setprofile(None)
greenlet.settrace(None)
print(json.dumps(list(files)))
"""


def way_on_the_page(text: str) -> list[str]:
    """Return the files that the drawing below "The way of a task" names, in its order."""
    drawing = text.split("## The way of a task\n", 1)[1].split("```")[1]
    groups = re.findall(r"(?m)^ +([a-z_/]+): (.*)$", drawing)
    return [f"{folder}/{name}.py" for folder, names in groups for name in names.split(", ")]


def test_a_warm_task_crosses_few_files_in_the_order_of_the_architecture() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    files = json.loads(run.stdout)
    page = PAGE.read_text()
    assert files == way_on_the_page(page) and f"the {len(files)} files of" in page
    assert len(files) <= FILES_MAX, files
