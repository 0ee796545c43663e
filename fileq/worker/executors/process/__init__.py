"""Runs handlers in child processes, which a fork server makes.

In the worker:       executor.py (tasks, and many tiny ones for one child), child_pool.py (children, and the worker's
                     side of the fork server), child_handle.py (one child and its stream, and how long it takes)
Programs below it:   fork_server.py (guard and fork server), child.py (runs tasks, and restores what a task has changed
                     in its process)
Used by both:        messages.py (messages, the program of children, the tokens of tasks), output_pipe.py (both ends of
                     what children print, and where their handlers are), descendants.py (processes below this one)

This file imports nothing: the programs must start fast, without the worker's modules.
"""
