"""A host with its own users, migrations and Socket.IO server. README.md says how to run it."""
