"""Clients of the queue: they submit tasks, follow them and read their results, and register nothing."""
