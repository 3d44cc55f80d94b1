"""The runtime: what programs call, and the system that runs them.

`control` decides, without I/O; `store` holds objects in shared memory; `processes`
puts both onto real processes and sockets. The simulator drives the same `control`
in virtual time.
"""
