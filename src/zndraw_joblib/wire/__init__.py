"""What crosses the network: messages, problems, statuses and events. Plain data, no I/O."""
