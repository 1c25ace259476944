"""Threads that claim jobs, run their handlers and record how it went."""
