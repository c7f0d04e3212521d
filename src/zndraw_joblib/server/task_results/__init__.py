"""Task results that are stored as bytes: uploads, reads, and deletion after their time."""
