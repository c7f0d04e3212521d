"""The models of requests and responses: messages, problems, statuses and events. Plain data, no I/O."""
