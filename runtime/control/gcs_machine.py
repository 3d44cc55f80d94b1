"""What a replica of the GCS runs: the GCS and the global scheduler, as one machine."""

from __future__ import annotations

from runtime.control.config import Config
from runtime.control.gcs import Gcs
from runtime.control.global_scheduler import GlobalScheduler
from runtime.control.replicated import Machine


def make_machine(config: Config) -> Machine:
    """Return the machine that every replica of a cluster starts out with."""
    return Machine(
        {"gcs": lambda ctx: Gcs(ctx, config), "global": lambda ctx: GlobalScheduler(ctx, config)},
        config,
    )
