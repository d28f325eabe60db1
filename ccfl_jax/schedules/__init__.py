"""Schedules: who fills the buffer, how stale, after how much work."""
