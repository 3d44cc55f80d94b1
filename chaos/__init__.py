"""Faults and the fuzz: what breaks a cluster, and what must hold nevertheless.

`faults` has plans, which are data, and the injectors that carry them out on both backends.
`fuzz` draws programs and plans, and holds each run against a sequential one and the invariants.
"""
