"""Faults as data: plans, one injector per backend, and the invariants they test.

A fault plan is a list of *at, action, target, parameters* and means the same on
every backend; the injectors here carry it out. Arrows: this package uses
`simulator` and `runtime`, and nothing here knows of `scenarios` or `reports`.
"""
