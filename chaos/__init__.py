"""Chaos test: run real processes, inject faults, then check the documented guarantees from the outside."""
