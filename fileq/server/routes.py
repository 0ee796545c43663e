"""The one table of endpoints. A new area is a module in api/ with ROUTES, and one line here."""

from __future__ import annotations

from fileq.server.api import (
    action_endpoints,
    api_description,
    dead_endpoints,
    job_endpoints,
    key_endpoints,
    list_endpoints,
    queue_endpoints,
    state_endpoints,
)
from fileq.server.route import Route

# In the order of docs/api.md. Of two routes that match a path the first one is used.
ROUTES: tuple[Route, ...] = (
    *list_endpoints.ROUTES,
    *job_endpoints.ROUTES,
    *action_endpoints.ROUTES,
    *dead_endpoints.ROUTES,
    *queue_endpoints.ROUTES,
    *state_endpoints.ROUTES,
    *key_endpoints.ROUTES,
    *api_description.ROUTES,
)
