"""This module describes how far a simulated run depends on the threshold of its policy."""

from __future__ import annotations

from raytwin.runtime.control.scheduling.near_threshold import NEAR, ThresholdTally


def near(tally: ThresholdTally) -> str:
    """Return how much of a run was near the threshold, for a sentence."""
    return (
        f"{tally.share:.0%} of the tasks on which the local schedulers decided had a wait within"
        f" {NEAR:.0%} of spill_wait_s ({milliseconds(tally.spill_wait_s)})"
    )


def milliseconds(seconds: float) -> str:
    """Return a threshold as a user reads it.

    >>> milliseconds(0.016)
    '16 ms'
    """
    return f"{1e3 * seconds:.4g} ms"
