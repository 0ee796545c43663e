"""Finds files, waits until they stand still, and enqueues each version once, no faster than it may."""
