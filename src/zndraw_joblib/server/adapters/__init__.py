"""What connects the server to the world beside HTTP: Socket.IO, tokens, sleepers."""
