"""joblib on a cluster: ``register_ray()``, then ``parallel_backend("ray")``.

joblib's backend for a pool runs on `runtime.api.pool.Pool`. Needs the extra
``raytwin[joblib]``.
"""

from __future__ import annotations

from typing import Any

from runtime.api.modules import refuser
from runtime.api.pool import Pool

__getattr__ = refuser("util.joblib")


def register_ray() -> None:
    """Make ``"ray"`` a backend of joblib. Raises ImportError if joblib is not there."""
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

        def effective_n_jobs(self, n_jobs: int) -> int:
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            from runtime.api.cluster import cluster_resources
            from runtime.api.state import current

            current()  # where there is no cluster, the pool would start one
            most = max(1, int(cluster_resources().get("CPU", 1)))
            return most if n_jobs is None or n_jobs < 0 else min(n_jobs, most)

        def configure(
            self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None,
            require: Any = None, **unused: Any,
        ) -> int:  # fmt: skip
            n_jobs = self.effective_n_jobs(n_jobs)
            self._pool: Pool | None = Pool(n_jobs)
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
