"""What one server process consists of, without a database: batcher, waiters, pub/sub, settings, ports."""
