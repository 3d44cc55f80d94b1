"""A node replaces a connection for heartbeats that is silent, and no other."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.config import Config


@pytest.mark.parametrize("limit_s", [0.2, 0.4, 1.0, 5.0])
def test_a_heartbeat_and_its_echo_fit_between_two_looks(limit_s: float) -> None:
    """With a limit of four heartbeats each look closed a connection that was about to be used."""
    config = Config(heartbeat_timeout_s=limit_s)
    assert config.heartbeat_silence_s >= 2 * config.heartbeat_s
    assert limit_s < 1 or config.heartbeat_silence_s <= limit_s / 4
