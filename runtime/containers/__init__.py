"""The real runtime with every node but the driver's in a container: ``init(backend="docker")``.

    this host                                        container of node k, its own address
    driver ── zygote ── head, node 0  <──TCP──>  zygote ── node k, its workers
       │     (at the network's gateway)              │
       └──────────────── standard streams ───── container_node

The processes are those of `runtime.processes`. Within a machine a cluster passes descriptors, so
the driver, node 0 and the head stay on this host, as one `LocalCluster`. It listens at the gateway
of a Docker network that the cluster has for itself; so a container reaches node 0 and the head by
TCP alone, as it reaches other containers.

A container runs one program, `container_node`. It reads the node's settings, the token among
them, from its standard input, so they are in no command line, no environment and no file. It starts
a zygote and the node. The driver prints what the container prints.

Containers use this machine's interpreter, libraries and modules, mounted read-only, over an image
of empty folders; or an image that has raytwin (see `Dockerfile`).

Faults are Docker's (kill, pause, disconnect, limits), and packet filters in a container's network
name space (`packet_filters`). For faults that filters cannot make, such as slow links, a cluster
starts with proxies on this host, at the gateway, by way of which its nodes dial one another and the
head; these then do what filters do otherwise.

Promises:

- However the driver ends, its containers and its network are removed: by the driver, or by the
  `driver_watcher`, a process that waits for the driver's end. A container also ends by itself when
  its standard input does, so only a paused one needs the watcher.
- A container writes to no directory of this machine but those that `init` was told to
  share.

Modules, the lower first:

- `engine`: the connection to the Docker engine; networks; removal by label.
- `host_image`: the image of empty folders, and what to mount.
- `container_node`: the program in a container.
- `default_disk`: the limit of a disk that is to be filled.
- `node_container`: one container, from outside.
- `packet_filters`: cut, lossy and reset links.
- `left_clusters`: removes a cluster whose driver has ended.
- `container_cluster`: the cluster, with the operations of fault plans.
- `docker_backend`: `init`.
"""

from __future__ import annotations
