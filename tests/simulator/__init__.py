"""Tests of the simulator, and of programs in virtual time."""
