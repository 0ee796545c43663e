"""The one table of endpoints. A new area is a module in api/ with ROUTES, and one line here."""

from __future__ import annotations

from fileq.server.api import (
    api_description,
    file_endpoints,
    job_endpoints,
    key_endpoints,
    live_endpoints,
    state_endpoints,
    upload_endpoints,
)
from fileq.server.route import Route

# In the order of docs/api.md. Of two routes that match a path the first one is used.
ROUTES: tuple[Route, ...] = (
    *job_endpoints.ROUTES,
    *state_endpoints.ROUTES,
    *file_endpoints.ROUTES,
    *upload_endpoints.ROUTES,
    *live_endpoints.ROUTES,
    *key_endpoints.ROUTES,
    *api_description.ROUTES,
)
