"""`Copier`: the same bytes whatever the number of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest

from raytwin.runtime.control.objects.copy_threads import PARALLEL_COPY_MIN
from raytwin.runtime.store.arena_writer import Copier


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 16])
@pytest.mark.parametrize("nbytes", [0, 1, 100_000, 1 << 20, 5_000_001, PARALLEL_COPY_MIN + 7])
def test_every_byte_arrives_and_none_beside(threads: int, nbytes: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    target = np.full(nbytes + 2, 77, np.uint8)
    copier = Copier(threads)
    copier.copy(target.data[1 : nbytes + 1], source.data)
    copier.close()
    assert np.array_equal(target[1:-1], source)
    assert target[0] == target[-1] == 77


def test_threads_by_size() -> None:
    assert Copier(1).threads_for(1 << 30) == 1
    assert Copier(4).threads_for(1 << 30) == 4
    assert Copier(4).threads_for(100_000) == 4
    assert Copier(4).threads_for(0) == 1
    assert Copier(0).threads_for(PARALLEL_COPY_MIN - 1) == 1
    assert Copier(0).threads_for(PARALLEL_COPY_MIN) == min(8, os.cpu_count() or 1)
    with pytest.raises(ValueError, match="-1 threads"):
        Copier(-1)
