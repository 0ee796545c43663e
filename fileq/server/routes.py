"""The one table of endpoints. A new area is a module in api/ with ROUTES, and one line here."""

from __future__ import annotations

from fileq.server.api import (
    acknowledgement_endpoints,
    action_endpoints,
    api_description,
    audit_endpoints,
    batch_endpoints,
    dead_endpoints,
    file_endpoints,
    job_endpoints,
    key_endpoints,
    list_endpoints,
    live_endpoints,
    queue_clearing,
    queue_endpoints,
    schedule_endpoints,
    state_endpoints,
    upload_endpoints,
    webhook_endpoints,
)
from fileq.server.route import Route

# In the order of docs/api.md. Of two routes that match a path the first one is used.
ROUTES: tuple[Route, ...] = (
    *job_endpoints.ROUTES,
    *list_endpoints.ROUTES,
    *action_endpoints.ROUTES,
    *dead_endpoints.ROUTES,
    *acknowledgement_endpoints.ROUTES,
    *queue_endpoints.ROUTES,
    *queue_clearing.ROUTES,
    *state_endpoints.ROUTES,
    *batch_endpoints.ROUTES,
    *schedule_endpoints.ROUTES,
    *webhook_endpoints.ROUTES,
    *file_endpoints.ROUTES,
    *upload_endpoints.ROUTES,
    *live_endpoints.ROUTES,
    *key_endpoints.ROUTES,
    *audit_endpoints.ROUTES,
    *api_description.ROUTES,
)
