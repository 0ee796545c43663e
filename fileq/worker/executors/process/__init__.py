"""Runs handlers in child processes, which a fork server makes.

In the worker:       executor.py (tasks), child_pool.py (children), child_handle.py (one child and its stream),
                     child_output.py (what children print), fork_server_client.py (the worker's side of the fork server)
Programs below it:   fork_server.py (guard and fork server), child.py (runs tasks), output_pipe.py (where it prints)
Used by both:        messages.py, task_tokens.py, output_marks.py, program.py, descendants.py, descriptors.py, prctl.py

This file imports nothing: the programs must start fast, without the worker's modules.
"""
