"""Runs handlers in child processes of a fork server."""
