"""A simulated actor's event loop refuses at once waits that it cannot serve."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

import raytwin as ray


@ray.remote(num_cpus=0)
class Waits:
    async def exec(self) -> None:
        await asyncio.create_subprocess_exec(sys.executable, "-c", "")

    async def shell(self) -> None:
        await asyncio.create_subprocess_shell("true")

    async def receive(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            await asyncio.get_running_loop().sock_recv(ours, 1)

    async def go_on(self) -> int:
        await asyncio.sleep(1)
        return 1


@pytest.mark.parametrize("what", ["exec", "shell", "receive"])
def test_real_processes_and_sockets_cannot_be_waited_for(what: str) -> None:
    ray.init(backend="sim", num_cpus=1)
    actor = Waits.remote()
    with pytest.raises(RuntimeError, match="cannot wait for real processes, sockets and pipes"):
        ray.get(getattr(actor, what).remote(), timeout=10)
    assert ray.get(actor.go_on.remote()) == 1
