"""Channels: how two processes exchange frames over a network that breaks.

In the paper, components talk over TCP and a broken connection is a dead process. Here a connection
may break, stall or be refused for a while between two processes that live, and the components
above notice nothing. A process has one *channel* with each process that it exchanges frames with:
a node with the head, with other nodes and with the replicas of the GCS. Workers and drivers talk to
the node of their own host over Unix sockets, which do not break, so they have none.

A channel uses one connection at a time, its *link*. Frames are numbered, the receiver acknowledges
them, and the sender keeps each until then. When a link breaks, either end dials again, after a
back-off that grows; the first packet of either end on a new link, its `Hello`, says what it has
received, and the other end sends what is missing. So a frame is delivered once and in order, or
the channel is closed, because one of the two processes is dead.

State, per channel (see `channel`): the numbers of the last frames sent and received, the frames
that the peer has not acknowledged, the link, and which process of the peer's name is at the other
end. A peer that has started again greets with another session: then the channel begins anew, and
what was kept for the process that has ended is dropped.

A broken connection proves nothing about its peer. A process is silent when frames wait for it, and
for `Config.heartbeat_timeout_s` it has neither acknowledged one nor received bytes of one, nor sent
any (on a slow link an acknowledgement waits behind a long frame), nor greeted once. One that sends
and hears nothing gets no acknowledgement either, and is the end that notices. After half of that
time the channel breaks the link and dials anew, since a connection may hang alone; after all of it
the channel reports its peer as unreachable, and the GCS decides which of the two leaves
(`gcs.node_table`). The head gets more time, `Config.fence_s`.

Heartbeats do not travel in channels: they go over connections of their own, ahead of everything,
and may be lost (`gcs.failure_detector`).

Promises: G1 and G3, where they need that no message is lost, doubled or reordered between two
living processes, whatever the network does.

Modules, the lower first:

- `channel`: one end of one channel: the state machine.
- `peers`: opens and closes all channels of one process, refuses greetings of former incarnations,
  and reports silent peers.

The world implements `Link` and `Network`: `processes/net` over TCP, `simulator/machine` in virtual
time. Cost per frame: one tuple kept, and 24 bytes and a checksum on the wire; an acknowledgement
of its own after 64 frames, 1 MB or 0.1 s, unless a frame carries it.
"""

from __future__ import annotations
