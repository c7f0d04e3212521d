"""Result backends: memory, Redis and the database."""
