"""The queue inside a host's app, the standalone server, and what the code of a host calls."""
