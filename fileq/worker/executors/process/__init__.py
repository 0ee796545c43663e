"""Runs handlers in child processes, which a fork server makes.

In the worker:       executor.py (tasks), child_pool.py (children), child_handle.py (one child and its stream),
                     fork_server_client.py (the worker's side of the fork server)
Programs below it:   fork_server.py (guard and fork server), child.py (runs tasks)
Used by both:        messages.py, program.py, descendants.py, prctl.py

This file imports nothing: the programs must start fast, without the worker's modules.
"""
