"""joblib on a cluster: ``register_ray()``, then ``parallel_backend("ray")``.

joblib's backend for a pool runs on `pool.Pool`. It needs the extra
``raytwin[joblib]``.
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.backend import current
from raytwin.runtime.api.lifecycle import cluster_resources
from raytwin.runtime.api.modules import missing_names
from raytwin.runtime.api.util.pool import Pool

__getattr__ = missing_names("util.joblib")

_OF_PROCESSES = {"context", "max_nbytes", "mmap_mode", "temp_folder", "verbose"}
"""Options that `Parallel` always passes, and that only concern processes of its own."""


def register_ray() -> None:
    """Make ``"ray"`` a backend of joblib. Raises ImportError without joblib."""
    try:
        from joblib import register_parallel_backend
        from joblib._parallel_backends import MultiprocessingBackend
        from joblib.pool import PicklingPool  # noqa: F401  (what a backend's pool is like)
    except ImportError as error:
        raise ImportError("register_ray() needs joblib: pip install 'raytwin[joblib]'") from error

    class RaytwinBackend(MultiprocessingBackend):
        """Runs joblib's batches as calls of a pool."""

        supports_retrieve_callback = False
        supports_sharedmem = False

        def __init__(
            self, nesting_level: int | None = None, inner_max_num_threads: int | None = None,
            ray_remote_args: dict[str, Any] | None = None,
        ) -> None:  # fmt: skip
            """``ray_remote_args`` are options of the pool's actors. TypeError for anything else."""
            super().__init__(
                nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads
            )
            self.ray_remote_args = ray_remote_args

        def effective_n_jobs(self, n_jobs: int) -> int:
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            current()  # starts a cluster if there is none, as the pool would
            most = max(1, int(cluster_resources().get("CPU", 1)))
            return most if n_jobs is None or n_jobs < 0 else min(n_jobs, most)

        def configure(
            self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None,
            require: Any = None, ray_remote_args: dict[str, Any] | None = None, **more: Any,
        ) -> int:  # fmt: skip
            if unknown := more.keys() - _OF_PROCESSES:
                raise TypeError(f"joblib's backend 'ray' has no option {min(unknown)!r}")
            n_jobs = self.effective_n_jobs(n_jobs)
            given = self.ray_remote_args if ray_remote_args is None else ray_remote_args
            self._pool: Pool | None = Pool(n_jobs, ray_remote_args=given)
            self.parallel = parallel
            return n_jobs

        def terminate(self) -> None:
            if self._pool is not None:
                self._pool.terminate()
                self._pool = None

        def submit(self, func: Any, callback: Any = None) -> Any:
            assert self._pool is not None
            return self._pool.apply_async(func, (), None, callback, callback)

        apply_async = submit

        def retrieve_result(self, out: Any, timeout: float | None = None) -> Any:
            return out.get(timeout)

    register_parallel_backend("ray", RaytwinBackend)
