"""Tests of `runtime.control`, in a small world of their own."""
