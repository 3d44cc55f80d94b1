"""A TCP proxy that breaks connections on command: Toxiproxy's HTTP API and toxics, on asyncio.

The real Toxiproxy 2.12 server is a program in Go. Where it is not installed, ``python -m
raytwin.chaos.toxiproxy`` takes its place: the same options, paths, JSON, status codes and toxics,
so that the same client and the same plans work after a bare ``pip install``. One contract suite,
`tests/chaos/test_toxiproxy_server.py`, runs against both.

Theory of operation
-------------------
A **proxy** listens on one address and dials its upstream for each client that it accepts. Such a
**connection** has two sides, each a socket, and two links. A **link** carries the bytes of one
direction through its **stages**, one for each toxic of the proxy in that direction, oldest first::

    client's socket -> link "upstream":   [stage, stage] -> upstream's socket
    client's socket <- link "downstream": [stage]        <- upstream's socket

Links, stages and toxics do no I/O and read no clock: time comes in with each call, and `Link.pump`
returns when it wants to be called again. A stage holds chunks in order; its **toxic** decides when
the first one leaves, in what pieces, or whether it is dropped. The end of a stream is an empty
chunk, so it stays behind the bytes that were sent before it. A link without stages costs one
``recv`` and one ``send``.

Back-pressure: a stage whose follower has no room keeps its chunks, and a link whose first stage
has no room stops reading its socket. A latency stage holds 32 MB, as the bytes under way on a long
line; all others 64 kB, and the sender's own socket queues the rest.

How a connection ends: an end of stream is passed on as such (``shutdown``), and the other direction
goes on. The loss of a socket closes the other one, after the bytes that are still in the link. A
toxic that ends a connection closes both sides. While ``reset_peer`` is in force, every close of the
connection uses a linger time of 0, for which the kernel sends RST. Disabling or deleting a proxy
closes its listener and both sides of every connection at once.

Where the real server differs
-----------------------------
It closes the whole connection when one side ends its stream, it restarts the draw of a toxicity
when a neighbouring toxic changes, and its ``reset_peer`` marks connections as they open: those that
are older get FIN, and those that are younger RST, even after its removal.

| file | what it is |
|---|---|
| `toxics` | the toxics: parameters, and the rule by which each passes chunks on |
| `link` | links and stages |
| `connection` | the two sockets of a connection, and its links |
| `proxy` | a proxy: listener, connections, toxics |
| `api` | paths, JSON and errors of the HTTP API |
| `http_server` | HTTP/1.1 for `api` |
| `toxiproxy_process` | finds the real server; starts either as a child process |
| `proxies` | the injector's view of a server, through the ``toxiproxy-python`` client |
"""

from __future__ import annotations
