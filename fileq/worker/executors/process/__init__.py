"""Runs handlers in child processes, which a fork server makes.

In the worker:       executor.py (tasks), tiny_batches.py (many tiny tasks for one child; batch_timer.py measures them),
                     child_pool.py (children), child_handle.py (one child and its stream), child_output.py (what
                     children print), fork_server_client.py (the worker's side of the fork server), server_watch.py
                     (whether that server is frozen)
Programs below it:   fork_server.py (guard and fork server), child.py (runs tasks), child_state.py (restores what a task
                     has changed in its process), output_pipe.py (where handlers print)
Used by both:        messages.py, stack_report.py, task_tokens.py, output_marks.py, program.py, descendants.py,
                     descriptors.py, prctl.py

This file imports nothing: the programs must start fast, without the worker's modules.
"""
