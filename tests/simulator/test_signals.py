"""A signal that comes while a simulated task runs is the driver's."""

from __future__ import annotations

import signal

import pytest

import raytwin as ray


class Alarm(BaseException):
    """Raised by a signal's handler."""


@pytest.mark.parametrize("concurrency", [0, 1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_a_signal_is_for_the_driver_also_while_a_simulated_task_runs(
    number: signal.Signals, concurrency: int
) -> None:
    def handler(*_: object) -> None:
        raise Alarm

    @ray.remote(max_retries=0)
    def interrupted() -> None:
        signal.raise_signal(number)

    @ray.remote(max_concurrency=concurrency or 1)
    class Interrupted:
        def call(self) -> None:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    if number == signal.SIGALRM:
        signal.signal(number, handler)
    ray.init(backend="sim", num_cpus=1)
    try:
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Alarm):
            if concurrency:
                ray.get(Interrupted.remote().call.remote())
            else:
                ray.get(interrupted.remote())
    finally:
        ray.shutdown()
        signal.signal(number, before)
