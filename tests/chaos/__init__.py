"""Tests of fault plans, injectors, invariants and the recovery fuzz."""
