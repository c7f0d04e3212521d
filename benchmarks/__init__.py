"""Measurements: `python -m benchmarks`. Every speed is a ratio to a no-op of the same minute."""
