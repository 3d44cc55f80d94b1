"""Tests of `control`, in a small world of their own."""
