"""Faults: plans, what carries them out, what must hold, and campaigns.

======================= =======================================================
`cluster`               what can be done to a running cluster, on any backend
`plan`                  a fault plan: data, from Python or a JSON file
`actions`, `targets`    one file each: what is done, and to what
`injector`              carries a plan out; `sim_injector`, `local_injector`
`invariants`            what must hold at the end, and always
`programs`, `fuzz`      random programs under random plans, held to an oracle
======================= =======================================================
"""
