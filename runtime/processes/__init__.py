"""The control plane on real processes: the only package that knows a socket."""
