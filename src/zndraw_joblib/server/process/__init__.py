"""The parts of one server process, without a database: batcher, waiters, pub/sub, settings, ports."""
