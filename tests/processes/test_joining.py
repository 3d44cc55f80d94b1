"""Programs that join a cluster of real processes: how they find it, and who may join."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import raytwin as ray
from raytwin.runtime.processes.client import running_clusters
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually
from tests.processes.jobs import job_rows, nothing_left, square
from tests.processes.joined import ROOT, Joined


def test_a_program_joins_and_both_go_on(start: Start, join: Callable[..., Joined]) -> None:
    session = start(nodes=2, cpus_per_node=2)
    other = join(
        session,
        """
        say(ray.get_runtime_context().get_job_id(), ray.get_runtime_context().namespace)
        say(sum(ray.get(f.map(range(100)))))
        say(len(ray.get(f.options(scheduling_strategy="SPREAD").remote(bytes(2_000_000)))))
        say(ray.get(f.remote(ray.put(7))), len(ray.nodes()))
        sys.stdin.readline()
        """,
    )
    assert other.line() == "02000000 job-2"
    assert other.line() == "4950"
    assert other.line() == "2000000"
    assert other.line() == "7 2"
    assert ray.get(square.map(range(10))) == [x * x for x in range(10)]
    assert ray.get_runtime_context().get_job_id() == "01000000"
    assert job_rows(session) == {1: True, 2: True}
    other.tell("done")
    other.end()
    eventually(lambda: job_rows(session) == {1: True, 2: False})
    nothing_left(session)
    assert ray.get(square.remote(5)) == 25


def test_auto_and_the_environment_find_the_newest_cluster(
    start: Start,
    join: Callable[..., Joined],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Others may run on this machine, and be newer.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    session = start(cpus_per_node=1)
    assert join(session, "say(session.cluster_address)", CLUSTER="auto").line() == (
        session.cluster_address
    )
    code = "import raytwin as ray; print(ray.init().cluster_address)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAYTWIN_ADDRESS": session.cluster_address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert found.stdout.strip() == session.cluster_address, found.stderr


def test_the_token_is_in_a_file_of_the_user_alone_and_goes_with_the_cluster(start: Start) -> None:
    session = start(cpus_per_node=1)
    [(path, cluster)] = [
        entry for entry in running_clusters.running() if entry[1].address == session.cluster_address
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    shown = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert cluster.token not in shown and cluster.join_socket not in shown
    ray.shutdown()
    assert not path.exists()
    with pytest.raises(ConnectionError, match="no raytwin cluster"):
        ray.init(address=session.cluster_address)


def test_a_wrong_token_is_turned_away_and_the_cluster_goes_on(start: Start) -> None:
    session = start(cpus_per_node=1)
    [cluster] = [c for _, c in running_clusters.running() if c.address == session.cluster_address]
    cluster.token = "00" * 32
    running_clusters.write(cluster)
    code = "import os, raytwin as ray; ray.init(address=os.environ['CLUSTER'])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTER": session.cluster_address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "ConnectionError: cannot join" in found.stderr
    assert ray.get(square.remote(3)) == 9
    assert job_rows(session) == {1: True}


def test_modules_and_the_directory_are_the_joining_program_s(
    start: Start, join: Callable[..., Joined], tmp_path: Path
) -> None:
    session = start(nodes=2, cpus_per_node=1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "only_here.py").write_text(f"NAME = {name!r}\n")
    script = """
        @ray.remote
        def look():
            import only_here
            return only_here.NAME, os.getcwd()
        os.chdir(os.environ["DIRECTORY"])
        sys.path.insert(0, os.environ["DIRECTORY"])
        job_setup = __import__("raytwin.runtime.session.job_setup", fromlist=["x"])
        session.tasks.setup = job_setup.describe()
        refs = [look.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
        say({(name, os.path.basename(path)) for name, path in ray.get(refs)})
        """
    for name in ("one", "two"):
        assert join(session, script, DIRECTORY=str(tmp_path / name)).line() == str({(name, name)})


def test_a_joined_program_gets_an_error_when_the_cluster_ends(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(cpus_per_node=1)
    other = join(
        session,
        """
        say("in")
        try:
            ray.get(f.remote(1, 1000))
        except ray.exceptions.RaySystemError as error:
            say(error)
        """,
    )
    assert other.line() == "in"
    ray.shutdown()
    assert "the cluster is gone" in other.line()
