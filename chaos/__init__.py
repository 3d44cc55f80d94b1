"""Faults and the fuzz: faults that a cluster must survive, and the checks that it does.

`faults` has plans, which are data, and the injectors that carry them out on both backends.
`fuzz` draws programs and plans, and holds each run against a sequential one and the invariants.
"""
