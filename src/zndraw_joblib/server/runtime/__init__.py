"""One server process: the flow of a request, validation, re-checks, the event queue."""
