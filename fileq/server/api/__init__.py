"""The functions of the endpoints, one module for each area. Each has ROUTES, which routes.py puts together."""
