"""Listeners on events: logs, metrics, traces, and the HTTP endpoints. Only `runtime` imports this package."""
