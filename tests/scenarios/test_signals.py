"""SIGTERM as an exception: where it is raised, and that it is raised once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

import raytwin as ray
from raytwin.scenarios.cli.commands.line import Terminated, sigterm_raises


@pytest.fixture(autouse=True)
def default_action() -> Iterator[None]:
    """Ray, when another test has started it in this process, leaves a handler of its own."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_the_command_while_a_simulated_task_runs() -> None:
    @ray.remote(max_retries=0)
    def terminated() -> None:
        # By itself it would end its simulated worker alone.
        subprocess.run(["kill", "-TERM", str(os.getpid())], check=True)

    with sigterm_raises():
        ray.init(backend="sim", num_cpus=1)
        try:
            with pytest.raises(Terminated):
                ray.get(terminated.remote())
        finally:
            ray.shutdown()


def test_the_second_one_does_not_disturb_what_the_first_one_began() -> None:
    for _ in range(2):
        with sigterm_raises():
            with pytest.raises(Terminated):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
