"""The same work on this queue and on others: `make bench ARGS=peers`."""
