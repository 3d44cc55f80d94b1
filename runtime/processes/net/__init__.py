"""The parts that all processes share: event loop, frames, connections.

A `component_process` runs components in turns: it reads the frames that have arrived, gives each
component that was addressed one turn, and then sends the turns' messages, one frame per sender
and receiver. It implements `Context` for the runtime, as `simulated_process` for the simulator.

State: per process, the routes from addresses to connections and the timers; per connection, the
bytes not sent yet, the incomplete frame received, and the incarnation of the node at its end.

A TCP connection opens by a mutual proof of the cluster's token (`auth`); Unix socket pairs are
passed as descriptors and are open at once. The first frame on a connection names its peer;
`channels` refuses peers whose incarnation is dead. A peer that knows the token is trusted.

Promises:

- Nothing is decoded before the peer has proved that it knows the token.
- Frames from one component to another arrive in order and once, whatever happens to connections, or
  the channel is closed.
- An error closes one connection, is logged in one line, and harms nothing else.

Modules, the lower first:

- `reactor`: epoll and timers.
- `auth`: the proof of the token.
- `wire`: frames as bytes: a length and msgpack.
- `connection`: a stream of frames, and the handshake before it.
- `packets`: requests to the zygote, with descriptors.
- `component_process`: components, turns, routes, the journal.
- `channels`: the channels of `runtime.control` over TCP: dials, accepts, breaks.
- `heartbeat_connections`: connections for heartbeats alone.
- `process_settings`: the settings that a process receives when it starts.
- `heap_trim`: gives free heap pages back to the system.
"""

from __future__ import annotations
