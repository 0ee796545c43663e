"""Runs the roles: services and their threads, signals, outages, and the listeners of a process.

The only package that imports `observe`, and the only one that starts or stops services.
"""
