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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fileq.handlers.builtin import checksum as checksum
    from fileq.handlers.builtin import simulate as simulate

__all__ = ["checksum", "simulate"]

if not TYPE_CHECKING:  # hidden from type checkers, which would take it for a promise of any name

    def __getattr__(name):
        """The built-in handlers. Commands import one of the modules here, and should not wait for these."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fileq.handlers import builtin

        return getattr(builtin, name)
