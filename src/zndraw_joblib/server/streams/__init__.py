"""Event streams: followers of watched rooms, and the clients that read them."""
