"""The server: HTTP over service over store."""
