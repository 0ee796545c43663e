"""Those who listen: logs, metrics, traces, the HTTP endpoints. Nothing outside depends on them."""
