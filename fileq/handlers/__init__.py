"""Handlers: the user's functions and commands that process jobs, and everything needed to run one of them.

registry.py        the functions decorated with @fileq.handler
routes.py          which handler gets which job
targets.py         imports the functions that routes name
run.py             runs one task and returns its outcome
file_check.py      checks the file before the handler runs
command_handler.py runs a command as the handler; subprocesses.py runs its process
event_loop.py      runs coroutines
context.py, log.py what a handler is given
outcomes.py        turns what a handler returned or raised into an outcome

Never imports a broker's implementation and never talks to a broker.
"""

from fileq.handlers.builtin import checksum, simulate

__all__ = ["checksum", "simulate"]
