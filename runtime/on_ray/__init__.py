"""Programs that import `raytwin` on Ray itself.

In a process with the environment variable `modules.ON_RAY`, and in the Ray workers that it starts,
the API that programs import as `raytwin` is Ray's own: no call passes through code of raytwin's
runtime, so what is measured there is Ray. What raytwin's API has and Ray's has not is written in
Ray's API (`f.map`) or in plain Python (`sleep`, `compute`, `now`, `Blob`) with the same meaning;
what has no equivalent raises `NotOnRay`, one line that says what it is.

The variable counts when `raytwin` is imported: a driver on Ray is a process of its own.

Modules, the lower first:

- `cluster_processes`: finds and ends all processes of a cluster.
- `node_network`: addresses for the nodes of a cluster, and proxies between them.
- `ray_cluster`: starts the nodes of a Ray cluster on this machine, and breaks them for fault plans.
- `ray_session`: what `init` returns: the cluster that was started or joined.
- `front_door`: the names of `raytwin`.
"""

from __future__ import annotations


class NotOnRay(ValueError):
    """Something that raytwin's own backends can do and Ray cannot; one line says what."""
