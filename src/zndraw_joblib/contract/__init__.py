"""What workers and servers share: names, statuses, messages, events, problems. Plain data, no I/O."""
