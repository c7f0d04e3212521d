"""Event streams of tasks and of rooms."""
