"""The control plane in virtual time: `cluster` runs `programs` on simulated `machine`s.

A discrete-event simulation on SimPy. The state machines of `runtime.control` run here
unchanged; time, cores, links, disks and the user's blocking calls are modelled. Imports go one
way: cluster > programs > machine. `profiles` has the measured costs.
"""

from __future__ import annotations
