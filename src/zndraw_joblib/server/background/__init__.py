"""The loops of one server process: sweeper, scheduler, health."""
