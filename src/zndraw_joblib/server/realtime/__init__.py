"""Socket.IO: rooms, presence, disconnects and the event publisher."""
