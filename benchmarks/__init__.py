"""Measurements. `python -m benchmarks` prints them all; every speed is a ratio to a no-op of the same minute."""
