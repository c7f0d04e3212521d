"""Benchmarks: `python -m benchmarks`. Each rate is also printed as a ratio to a no-op endpoint."""
