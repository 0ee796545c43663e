"""Those who listen: logs, metrics, the HTTP endpoints. Nothing outside depends on them."""
