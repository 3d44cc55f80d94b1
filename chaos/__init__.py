"""Faults that a cluster must survive, and the fuzz that checks that it does.

`faults` has plans, which are data, and the injectors that carry them out on both backends.
`toxiproxy` breaks connections: a server of Toxiproxy's API, and the view of one for injectors.
`fuzz` draws programs and plans, and compares each run with a sequential run and the invariants.
"""
