"""Faults that a cluster must survive, and the fuzz that checks that it does.

`faults` has plans, which are data, and the injectors that carry them out on both backends.
`fuzz` draws programs and plans, and compares each run with a sequential run and the invariants.
"""
