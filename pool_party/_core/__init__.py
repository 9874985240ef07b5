"""Calls in flight, the workers that run them, and the life of a pool."""
