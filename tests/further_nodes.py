"""Nodes that programs add to the cluster in which they run, on Ray or on raytwin, and kill."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.backend import connected


class FurtherNode:
    """A node of one CPU, and of resources that may be on no other node."""

    def __init__(self, ray: Any, **resources: float) -> None:
        self._cluster: Any
        backend: Any = connected()
        if backend is not None:
            self._cluster = backend.cluster
            self._node = self._cluster.add_node({"CPU": 1.0, **resources})
            return
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=False)
        head = ray._private.worker.global_worker.node
        self._cluster.head_node, self._cluster.redis_address = head, head.redis_address
        self._node = self._cluster.add_node(wait=False, num_cpus=1, resources=resources)

    def kill(self) -> None:
        """End the node and its workers at once."""
        if isinstance(self._node, int):
            self._cluster.kill_node(self._node)
        else:
            self._cluster.remove_node(self._node, allow_graceful=False)
