"""What of the backend `docker` needs no engine: options, settings, mounts, filters, errors."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raytwin as ray
from raytwin.chaos.faults.injector import attached
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.containers import container_node, engine, host_image
from raytwin.runtime.containers.container_node import ContainerSettings
from raytwin.runtime.containers.default_disk import DISK_BYTES
from raytwin.runtime.containers.docker_backend import _limits
from raytwin.runtime.containers.packet_filters import End, LinkFault, Verdict, commands
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.processes.net.process_settings import NodeSettings
from raytwin.scenarios.core.scenario import UsageError
from raytwin.scenarios.measure import runner

A, B = End("10.0.0.2", 7000), End("10.0.0.3", 7000)


def settings() -> ContainerSettings:
    node = NodeSettings(1, {"CPU": 1.0}, Config(), b"t" * 32, ("10.0.0.1", 5))
    return ContainerSettings(node, 1 << 20, (3, 11), ["/a"], ["numpy"])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"container_cpus": 0}, "container_cpus"),
        ({"container_memory_bytes": 1}, "container_memory_bytes"),
        ({"container_disk_bytes": -1}, "container_disk_bytes"),
        ({"shared_directories": ["/no/such"]}, "shared_directories"),
        ({"nodes": 201}, "200"),
        ({"object_store_memory": 1}, "object store"),
    ],
)
def test_a_wrong_option_is_one_line(wrong: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ray.init(backend="docker", **{"nodes": 2, **wrong})
    with pytest.raises(TypeError, match="of backend='local'"):
        ray.init(backend="docker", object_spilling_dir="/tmp")
    with pytest.raises(TypeError, match="of backend='docker'"):
        ray.init(backend="local", container_cpus=1)


def test_a_plan_that_fills_disks_gives_them_a_limit_unless_the_program_does() -> None:
    full, cut = (
        Plan([Step("disk_full", "node:1", 1.0)]), Plan([Step("cut", "link:1>head", 1.0)])
    )  # fmt: skip
    with attached(full, lambda session, injector: None):
        assert _limits(None, None, None).disk_bytes == DISK_BYTES
        assert _limits(None, None, 1 << 20).disk_bytes == 1 << 20
        assert _limits(None, 512 << 20, None).disk_bytes == 128 << 20
    with attached(cut, lambda session, injector: None):
        assert _limits(None, None, None).disk_bytes is None
    assert _limits(None, None, None).disk_bytes is None


def test_without_an_engine_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    with pytest.raises(engine.NoEngine, match=r"none answers at unix:///no/such\.sock") as caught:
        ray.init(backend="docker", nodes=2)
    assert "\n" not in str(caught.value)
    assert not ray.is_initialized()
    with pytest.raises(UsageError, match="none answers"):
        runner.plan(["fig11a"], ["docker"])
    assert {job.backend for job in runner.plan(["fig11a"])} == {"sim", "local"}


def test_settings_are_read_as_they_were_packed() -> None:
    data = container_node.pack(settings())
    assert container_node.read(io.BytesIO(data + b"more")) == settings()


@given(st.binary(max_size=200), st.integers(0, 400))
def test_junk_instead_of_settings_is_an_error(junk: bytes, cut: int) -> None:
    for data in (junk, len(junk).to_bytes(4, "big") + junk, container_node.pack(settings())[:cut]):
        if data != container_node.pack(settings()):
            with pytest.raises(ValueError):
                container_node.read(io.BytesIO(data))


def test_a_container_with_another_python_ends_with_one_line() -> None:
    other = settings()
    other.python = (2, 7)
    code = "from raytwin.runtime.containers.container_node import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=container_node.pack(other), capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(ray.__file__).parents[1])}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert "the driver 2.7: build the image with the driver's version" in line


def test_mounts_cover_what_is_asked_for_once(tmp_path: Path) -> None:
    inner, shared = tmp_path / "a" / "b", tmp_path / "shared"
    inner.mkdir(parents=True)
    shared.mkdir()
    made = host_image.mounts(
        [str(inner), str(tmp_path / "a"), "/", str(tmp_path / "none"), str(shared)], [str(shared)]
    )
    assert [(each["Target"], each["ReadOnly"]) for each in made] == [
        (str(tmp_path / "a"), True),
        (str(shared), False),
    ]
    assert all(each["Target"] == each["Source"] for each in made)


def test_program_folders_are_not_the_interpreters() -> None:
    here = str(Path(__file__).parent)
    assert host_image.program_folders([here, "/no/such", *sys.path[1:]])[0] == here
    library = os.path.dirname(os.__file__)
    assert host_image.program_folders([library]) == []


def test_filters_stand_at_either_end_and_are_deleted_as_they_were_added() -> None:
    cut = LinkFault(Verdict.DROP)
    added = commands(A, B, False, cut, add=True)
    assert added == [
        "iptables -w -A INPUT -s 10.0.0.2 -p tcp --dport 7000 -j DROP".split(),
        "iptables -w -A INPUT -s 10.0.0.2 -p tcp --sport 7000 -j DROP".split(),
    ]
    assert commands(A, B, False, cut, add=False) == [
        ["-D" if word == "-A" else word for word in command] for command in added
    ]
    assert (
        commands(A, End("10.0.0.1", 99), True, LinkFault(Verdict.RESET), add=True)[0]
        == (
            "iptables -w -A OUTPUT -d 10.0.0.1 -p tcp --dport 99 -j REJECT --reject-with tcp-reset"
        ).split()
    )
    (lossy, _) = commands(A, B, False, LinkFault(Verdict.DROP, 0.25), add=True)
    assert lossy[-7:] == ["statistic", "--mode", "random", "--probability", "0.250000",
                          "-j", "DROP"]  # fmt: skip


def test_a_filter_of_the_head_spares_node_0_which_has_its_address() -> None:
    (only,) = commands(End("10.0.0.2", 0), End("10.0.0.1", 99), True, LinkFault(Verdict.DROP), True)
    assert "--dport" in only and "99" in only
