"""What the code of a host calls: submit and follow tasks, in its own transactions."""
