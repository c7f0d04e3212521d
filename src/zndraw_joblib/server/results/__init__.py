"""Stored results of tasks and of providers, and the places that hold their bytes."""
