"""The zygote's loop, without processes."""

from __future__ import annotations

import socket
import subprocess

import pytest

from raytwin.runtime.processes.net.packets import packet_pair
from raytwin.runtime.processes.spawn.zygote import Zygote


@pytest.mark.parametrize("how", ["the driver dies", "it shuts the cluster down"])
def test_the_zygote_exits_with_its_driver_before_further_requests(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """All that many nodes ask for at a time takes seconds to fork."""
    driver = subprocess.Popen(["sleep", "600"])
    try:
        control, theirs = packet_pair()
        zygote = Zygote(control, driver.pid)
        pairs = [packet_pair() for _ in range(5)]
        for ours, node in pairs:
            zygote._add_requester(ours)
            node.send(b"a request")
        served: list[int] = []

        def serve(fd: int) -> bool:
            served.append(fd)
            if how == "the driver dies":
                driver.kill()
                driver.wait()
            else:
                theirs.close()
            return True

        monkeypatch.setattr(zygote, "_serve", serve)
        zygote._warm = True
        zygote.run()
        assert len(served) == 1
    finally:
        driver.kill()
        driver.wait()
    ends: list[socket.socket] = [control, theirs, *(end for pair in pairs for end in pair)]
    for end in ends:
        end.close()
