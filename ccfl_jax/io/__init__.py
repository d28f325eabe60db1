"""Files: whole, locked, and read without trust."""
