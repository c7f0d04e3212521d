"""What the operator's commands do. It needs the server's libraries."""
