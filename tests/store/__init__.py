"""Tests of `runtime.store`."""
