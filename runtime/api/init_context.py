"""What `init` returns, as programs see it: a context manager with an address."""

from __future__ import annotations

import platform
from typing import Any


class ClusterContext:
    """Ends the cluster when it is left; ``address_info`` says where it is."""

    node: int
    cluster_address = ""
    """Where other drivers may join; empty: they cannot."""

    @property
    def address_info(self) -> dict[str, Any]:
        """Return where the driver's node is, and by which address others may join."""
        from raytwin.runtime.api.lifecycle import nodes

        row = nodes()[self.node]
        return {
            "node_id": row["NodeID"],
            "node_ip_address": row["NodeManagerAddress"],
            "address": self.cluster_address or "local",
            "gcs_address": self.cluster_address or "local",
            "webui_url": None,
        }

    def __getitem__(self, key: str) -> Any:
        return self.address_info[key]

    @property
    def dashboard_url(self) -> str:
        """Empty: there is no dashboard."""
        return ""

    @property
    def python_version(self) -> str:
        """Python's version."""
        return platform.python_version()

    def disconnect(self) -> None:
        """End the cluster, or leave it if it was joined."""
        from raytwin.runtime.api.lifecycle import shutdown

        shutdown()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.disconnect()
