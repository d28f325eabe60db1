"""Readers of data files in their published forms."""
