"""Files: written whole, locked, and read without trust."""
