"""The loops of one server process: sweeper, pruner, scheduler, statistics, health, functions after ends."""
