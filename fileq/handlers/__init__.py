"""Handlers: the user's functions and commands that process jobs, and everything needed to run one of them.

registry.py        the functions decorated with @fileq.handler and @fileq.task
extensions.py      the functions decorated with @fileq.middleware, @fileq.hook and @fileq.before_enqueue
importing.py       imports the user's modules and checks the functions that they name
routes.py          which handler gets which job; loads them all, and again for a reload
run.py             runs one task and returns its outcome; calls the handler through its middleware
job_file.py        opens and checks the file before the handler runs
command_handler.py runs a command as the handler
event_loop.py      runs coroutines
context.py         what a handler is given, and what it leaves behind besides its result
outcomes.py        turns what a handler returned or raised into an outcome; tracebacks.py says where it was
output.py          where the output of handlers goes
builtin.py         the built-in handlers

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
