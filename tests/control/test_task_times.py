"""Mean times of tasks, by which a node decides what it keeps."""

from __future__ import annotations

import random
import statistics

import pytest

from raytwin.runtime.control.local_scheduler.worker_leases import TaskTimes

F, G = b"f", b"g"


def test_the_first_task_counts_as_many_and_fades() -> None:
    times = TaskTimes()
    for function, each_s in ((F, 0.001), (F, 0.011), (G, 0.5)):
        times.add(function, 1, each_s, workers=1)
    assert times.means == {F: pytest.approx(0.002), G: 0.5}
    assert times.means[F] < times.mean_s < times.means[G]
    for _ in range(1_000):
        times.add(F, 1, 0.011, workers=64)
    assert times.means[F] == pytest.approx(0.011, rel=0.01)


def test_tasks_that_end_together_count_as_so_many() -> None:
    for workers in (1, 64):
        together, in_turn = TaskTimes(), TaskTimes()
        for times in (together, in_turn):
            times.add(F, 200, 0.001, workers)
        together.add(F, 3, 0.01, workers)
        for _ in range(3):
            in_turn.add(F, 1, 0.01, workers)
        assert together.means[F] == pytest.approx(in_turn.means[F], rel=0.06)


def test_of_tasks_that_begin_together_the_short_ones_do_not_set_the_mean() -> None:
    seed, workers = 7, 64
    rng = random.Random(seed)
    print(f"seed {seed}")
    times = TaskTimes()
    lengths = [rng.uniform(0.0005, 0.045) for _ in range(4 * workers)]
    for each_s in lengths:  # in any order: as they end in the long run
        times.add(F, 1, each_s, workers)
    usual_s = statistics.mean(lengths)
    for each_s in sorted(rng.uniform(0.0005, 0.045) for _ in range(workers))[: workers // 4]:
        times.add(F, 1, each_s, workers)
    assert 0.6 * usual_s < times.means[F] < 1.4 * usual_s


def test_a_mean_follows_when_tasks_have_become_longer() -> None:
    for workers in (1, 64):
        times = TaskTimes()
        times.add(F, 10_000, 0.001, workers)
        for _ in range(10 * max(workers, 10)):
            times.add(F, 1, 0.1, workers)
        assert times.means[F] > 0.09


def test_many_tasks_at_once_do_not_outweigh_the_past_completely() -> None:
    times = TaskTimes()
    times.add(F, 100, 0.001, workers=2)
    times.add(F, 1_000_000, 0.0, workers=2)
    assert 0.0001 < times.means[F] < 0.0009


def test_a_node_forgets_the_functions_of_a_job() -> None:
    times = TaskTimes()
    times.add(F, 5, 0.001, workers=2)
    times.add(G, 5, 0.1, workers=2)
    times.forget(lambda function: function == F)
    assert list(times.means) == [G]
    times.add(F, 1, 0.2, workers=2)
    assert times.means[F] == 0.2, "as if it had never run"
