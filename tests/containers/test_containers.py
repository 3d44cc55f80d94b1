"""Programs and faults on nodes in containers: values are right, and nothing hangs."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.containers import container_cluster
from raytwin.runtime.containers.engine import LABEL
from tests.containers import programs
from tests.containers.conftest import Start
from tests.containers.programs import (
    Counter,
    alive,
    double,
    doubles_are_right,
    on,
    place,
    reaches,
)
from tests.processes.helpers import LIMIT_S, eventually

pytestmark = pytest.mark.docker


def test_a_program_has_the_values_that_it_has_on_local(start: Start) -> None:
    start(backend="local")
    expected = programs.everything()
    ray.shutdown()
    session = start()
    assert programs.everything() == expected
    assert session.name == "docker"
    hosts = [row["NodeManagerAddress"] for row in ray.nodes()]
    assert len(set(hosts)) == 3
    found = [ray.get(on(place, node).remote(), timeout=LIMIT_S) for node in range(3)]
    assert [name for name, _, _ in found[1:]] == ["node1", "node2"]
    assert {home for _, _, home in found[1:]} == {"/raytwin"}


def test_the_token_is_in_no_command_line_and_no_environment(
    start: Start, docker_engine: Any
) -> None:
    session = start(nodes=2)
    token = session.cluster._here._token
    container = docker_engine.containers.get(session.cluster.containers[1]._container.id)
    described = str(container.attrs)
    processes = str(container.top(ps_args="-eww -o pid,args"))
    assert "container_node" in processes
    for form in (token.hex(), token.hex().upper(), repr(token)[2:-1]):
        assert form not in described
        assert form not in processes


def test_containers_print_through_the_driver_and_write_only_where_they_may(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start(nodes=2, shared_directories=[tmp_path])

    @ray.remote
    def write(path: str) -> str:
        print("written in a container", flush=True)
        try:
            Path(path, "file").write_text("text")
        except OSError as error:
            return str(error.strerror)
        return "ok"

    here = Path(__file__).parent
    assert ray.get(on(write, 1).remote(str(here)), timeout=LIMIT_S) == "Read-only file system"
    assert ray.get(on(write, 1).remote(str(tmp_path)), timeout=LIMIT_S) == "ok"
    assert (tmp_path / "file").read_text() == "text"
    eventually(lambda: "written in a container" in capfd.readouterr().out)


def test_a_node_is_killed_and_returns_under_its_address(start: Start) -> None:
    cluster = start().cluster
    before = ray.nodes()[1]["NodeManagerAddress"]
    doubles_are_right()
    refs = [double.remote(i) for i in range(200)]
    cluster.kill_node(1)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(200)]
    eventually(lambda: alive() == [True, False, True])
    cluster.restart_node(1)
    eventually(lambda: alive() == [True, True, True])
    assert ray.nodes()[1]["NodeManagerAddress"] == before
    assert ray.get(on(double, 1).remote(4), timeout=LIMIT_S) == 8
    cluster.remove_node(2)
    with pytest.raises(ValueError, match="node 2 was removed"):
        cluster.restart_node(2)
    assert cluster.add_node({"CPU": 1.0}) == 3
    eventually(lambda: alive() == [True, True, False, True])
    assert ray.get(on(double, 3).remote(4), timeout=LIMIT_S) == 8
    with pytest.raises(ValueError, match="the driver's own"):
        cluster.kill_node(0)


def test_a_paused_node_is_declared_dead_and_leaves_when_it_goes_on(start: Start) -> None:
    cluster = start().cluster
    doubles_are_right()
    cluster.pause_node(2)
    refs = [double.remote(i) for i in range(200)]
    with pytest.raises(ValueError, match="node 2 is paused"):
        cluster.kill_actor(0)
    eventually(lambda: alive() == [True, True, False])
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(200)]
    cluster.resume_node(2)
    assert cluster.containers[2].ended.wait(LIMIT_S)
    cluster.restart_node(2)
    eventually(lambda: alive() == [True, True, True])
    cluster.pause_node(1)
    cluster.restart_node(1)  # a paused node can be killed
    eventually(lambda: alive() == [True, True, True])
    doubles_are_right()


def test_a_disconnected_node(start: Start) -> None:
    """It goes on if it is back in time; else it is declared dead, and leaves when it is back."""
    cluster = start(heartbeat_timeout_s=3.0).cluster
    doubles_are_right()
    refs = [double.remote(i) for i in range(100)]
    cluster.disconnect_node(1)
    cluster.reconnect_node(1)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(100)]
    assert alive() == [True, True, True]
    assert not cluster.containers[1].ended.is_set()
    refs = [double.remote(i) for i in range(100)]
    cluster.disconnect_node(1)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(100)]
    eventually(lambda: alive() == [True, False, True])
    cluster.reconnect_node(1)
    assert cluster.containers[1].ended.wait(LIMIT_S)
    cluster.restart_node(1)
    eventually(lambda: alive() == [True, True, True])
    assert ray.get(on(double, 1).remote(4), timeout=LIMIT_S) == 8


def test_a_node_whose_heartbeats_do_not_arrive_is_declared_dead(start: Start) -> None:
    cluster = start().cluster
    refs = [double.remote(i) for i in range(100)]
    cluster.cut("node:2", "head")
    eventually(lambda: alive() == [True, True, False])
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(100)]
    cluster.kill_node(2)
    cluster.heal("node:2", "head")
    # A link of a node that has ended breaks for the next container, which therefore cannot join.
    cluster.cut("node:2", "head")
    cluster.restart_node(2)
    time.sleep(1)
    assert alive() == [True, True, False]
    cluster.heal("node:2", "head")
    eventually(lambda: alive() == [True, True, True])
    doubles_are_right()


def test_a_link_heals_although_its_node_leaves_meanwhile(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fenced node leaves as soon as it hears the head again: maybe while a link is healed."""
    cluster = start(heartbeat_timeout_s=LIMIT_S).cluster
    cluster.cut("node:1", "head")
    leaving = cluster.containers[1]

    def ended_by_its_container(command: list[str], codes: tuple[int, ...] = (0,)) -> None:
        cluster.kill_node(1)
        raise RuntimeError(f"{command}: its container has ended")

    monkeypatch.setattr(leaving, "run_as_root", ended_by_its_container)
    cluster.heal("node:1", "head")
    cluster.restart_node(1)
    assert ray.get(on(double, 1).remote(2), timeout=LIMIT_S) == 4


def test_links_break_one_way_and_heal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by attempts to connect: packets of either direction are needed for one."""
    session = start(heartbeat_timeout_s=LIMIT_S)
    cluster = session.cluster
    rows = {int(row["NodeID"]): row for row in ray.nodes()}
    ports = {n: (row["NodeManagerAddress"], row["NodeManagerPort"]) for n, row in rows.items()}

    def seen(source: int, destination: int, timeout_s: float = LIMIT_S) -> str:
        ref = on(reaches, source).remote(*ports[destination], timeout_s)
        return str(ray.get(ref, timeout=LIMIT_S))

    for a, b in ((1, 2), (1, 0), (0, 2)):
        assert seen(a, b) == seen(b, a) == "yes"
    cluster.cut("node:1", "node:2")
    assert seen(1, 2, 0.3) == "timeout"
    assert seen(2, 1, 0.3) == "timeout"  # the answers are lost
    assert seen(1, 0) == seen(0, 2) == "yes"
    cluster.heal("node:1", "node:2")
    assert seen(1, 2) == seen(2, 1) == "yes"
    cluster.cut("node:0", "node:1")
    assert seen(0, 1, 0.3) == seen(1, 0, 0.3) == "timeout"
    cluster.heal("node:0", "node:1")
    plan = Plan([Step("loss", "link:2>1", 0, parameters={"probability": 0.5})])
    injector = attach(session, plan)
    # TCP sends lost packets again and doubles the pause each time, so one try may take long.
    eventually(lambda: seen(2, 1) == "yes" and packets_dropped(cluster.containers[1]) > 0)
    assert [each.error for each in injector.injections] == [""]
    injector.stop()
    cluster.heal("node:2", "node:1")
    assert packets_dropped(cluster.containers[1]) == 0
    monkeypatch.setattr(container_cluster, "RESET_S", 3)
    resetting = threading.Thread(target=cluster.reset_links, args=("node:1", "node:2"))
    resetting.start()
    eventually(lambda: seen(1, 2) == "refused")
    resetting.join()
    assert seen(1, 2) == seen(2, 1) == "yes"
    assert alive() == [True, True, True]
    for source, destination, error in (
        ("node:1", "node:1", "two ends"),
        ("node:0", "head", "both on this machine"),
        ("node:1", "node:9", "no node 9"),
        ("node:1", "replica:0.1", "no end 'replica:0.1'"),
    ):
        with pytest.raises(ValueError, match=error):
            cluster.cut(source, destination)


def test_connections_with_the_head_are_reset(start: Start) -> None:
    cluster = start().cluster
    refs = [double.remote(i) for i in range(100)]
    cluster.reset_links("node:1", "head", rst=True)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(100)]
    with pytest.raises(ValueError, match="by FIN"):
        cluster.reset_links("node:1", "head", rst=False)


def packets_dropped(container: Any) -> int:
    """Return how many packets the filters of a container have dropped."""
    _, output = container._container.exec_run(["iptables", "-nvxL"], user="0:0")
    return sum(int(n) for n in re.findall(r"(?m)^\s*(\d+) +\d+ +DROP", output.decode()))


def test_workers_and_actors_are_killed(start: Start) -> None:
    cluster = start(nodes=2).cluster
    counter = on(Counter, 1).remote()
    assert ray.get(counter.add.remote(1), timeout=LIMIT_S) == 1
    before = cluster.containers[1].workers()
    cluster.kill_actor(0)
    assert ray.get(counter.add.remote(2), timeout=LIMIT_S) == 3
    assert cluster.containers[1].workers() != before
    refs = [on(double, 1).remote(i) for i in range(50)]
    ray.wait(refs)
    cluster.pause_worker(1, 0)
    cluster.resume_workers(1)
    cluster.kill_worker(1, -1)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(50)]
    assert alive() == [True, True]


def test_a_task_that_takes_more_memory_than_its_container_has(start: Start) -> None:
    start(nodes=2, container_memory_bytes=256 << 20, object_store_memory=16 << 20)

    @ray.remote(max_retries=0)
    def hog(nbytes: int) -> int:
        return sum(bytearray(b"\1") * nbytes) // nbytes

    assert ray.get(on(hog, 1).remote(10 << 20), timeout=LIMIT_S) == 1
    refs = [double.remote(i) for i in range(50)]
    with pytest.raises((ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)):
        ray.get(on(hog, 1).remote(1 << 30), timeout=LIMIT_S)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(50)]


def test_a_full_disk_fails_what_needs_it_and_nothing_else(start: Start) -> None:
    cluster = start(nodes=2, container_disk_bytes=32 << 20, object_store_memory=16 << 20).cluster

    def on_disk() -> int:
        return sum(row[2] for row in cluster.query("disks") if row[0] == 1)

    here = on(programs.large, 1)
    kept = [here.remote(i) for i in range(100)]  # 30 MB: half of them on disk
    assert [value[0] for value in ray.get(kept, timeout=LIMIT_S)] == list(range(100))
    assert on_disk()
    del kept
    # An object that the owner releases after the disk is full would make room there.
    eventually(lambda: not on_disk())
    cluster.fill_disk(1)
    more = [here.remote(i) for i in range(100)]
    failed = 0
    for number, ref in enumerate(more):
        try:
            assert ray.get(ref, timeout=LIMIT_S)[0] == number
        except ray.exceptions.RayError:
            failed += 1
    assert failed > 0
    del more, ref
    cluster.heal_node(1)
    again = [here.remote(i) for i in range(100)]
    assert [value[0] for value in ray.get(again, timeout=LIMIT_S)] == list(range(100))


def test_limits_are_those_of_docker(start: Start, docker_engine: Any) -> None:
    session = start(nodes=2, container_cpus=0.5, container_memory_bytes=512 << 20)
    container = docker_engine.containers.list(filters={"label": LABEL})[0]
    assert container.attrs["HostConfig"]["NanoCpus"] == 500_000_000
    assert container.attrs["HostConfig"]["Memory"] == 512 << 20
    assert ray.nodes()[1]["Resources"]["memory"] < 512 << 20
    before = container.stats(stream=False)["memory_stats"]["usage"]
    session.cluster.press_memory(1, 200 << 20)
    assert container.stats(stream=False)["memory_stats"]["usage"] - before > 190 << 20
    session.cluster.heal_node(1)
    assert container.stats(stream=False)["memory_stats"]["usage"] - before < 100 << 20
    with pytest.raises(ValueError, match="container_disk_bytes"):
        session.cluster.fill_disk(1)
    with pytest.raises(ValueError, match="in no container"):
        session.cluster.press_memory(0, 1)


def test_an_image_that_is_not_there_is_one_line(start: Start) -> None:
    with pytest.raises(RuntimeError, match="No such image: no-such-image") as caught:
        start(image="no-such-image:none")
    assert "\n" not in str(caught.value)


def test_no_watcher_is_left_on_this_machine(start: Start) -> None:
    name = start(nodes=2).cluster.name
    assert f"left_clusters {name}" in command_lines()
    ray.shutdown()
    assert name not in command_lines()


def command_lines() -> str:
    done = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True)
    return done.stdout
