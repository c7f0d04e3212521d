"""What workers and servers agree on: names, states, messages, events, problems. Plain data, no I/O."""
