"""The control plane: state machines that do no I/O.

Every file here is one box of the paper's architecture; `context` is the port
to the world, `messages` the protocol. Nothing in this package opens a socket,
reads a clock or starts a thread, so the simulator runs it as it is.
"""
