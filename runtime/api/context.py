"""What `init` returns, as programs see it: a context manager with an address."""

from __future__ import annotations

import platform
from typing import Any


class ClusterContext:
    """Ends the cluster when it is left; ``address_info`` says where it is."""

    node: int

    @property
    def address_info(self) -> dict[str, Any]:
        """Return where the driver's node is. Nothing can connect to it from outside."""
        from runtime.api.cluster import nodes

        row = nodes()[self.node]
        return {
            "node_id": row["NodeID"],
            "node_ip_address": row["NodeManagerAddress"],
            "address": f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}",
            "gcs_address": "local",
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
        """End the cluster."""
        from runtime.api.cluster import shutdown

        shutdown()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.disconnect()
