"""What a test may need that a machine may lack: skip with a reason, or fail.

A machine that is meant to have it all (CI) names it in ``RAYTWIN_REQUIRE``, a
list with commas: then what is missing fails and does not hide behind a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from raytwin.runtime.on_ray.node_network import PROGRAMS


def require(what: str, available: bool, reason: str) -> None:
    """Skip the running test if `what` is not `available`; fail if it is required.

    Usable at module level too, where a skip takes the whole module.
    """
    if available:
        return
    if what in (name.strip() for name in os.environ.get("RAYTWIN_REQUIRE", "").split(",")):
        pytest.fail(f"{what} is required here: {reason}")
    pytest.skip(f"needs {what}: {reason}", allow_module_level=True)


def require_namespaces() -> None:
    """Skip the running test where no network namespaces can be made for nodes of Ray's."""
    unshared = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    able = unshared.returncode == 0 and all(map(shutil.which, PROGRAMS))
    require("namespaces", able, f"root may make them, who has {' and '.join(PROGRAMS)}")
