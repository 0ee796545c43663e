"""fileq: drop a file into a directory; it is queued once, processed, retried and never lost.

    @fileq.handler("**/*.pdf")
    def extract(job: fileq.JobView, context: fileq.Context) -> dict: ...

Importing this package must stay instant: no import here; what handlers need is loaded when they name it.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fileq.core.errors import Permanent as Permanent
    from fileq.core.errors import Retry as Retry
    from fileq.handlers.context import Context as Context
    from fileq.handlers.context import JobView as JobView
    from fileq.handlers.registry import handler as handler

__version__ = "0.1.0"

_HOMES = {
    "Context": "fileq.handlers.context",
    "JobView": "fileq.handlers.context",
    "Permanent": "fileq.core.errors",
    "Retry": "fileq.core.errors",
    "handler": "fileq.handlers.registry",
}

if not TYPE_CHECKING:  # hidden from type checkers, which would take it for a promise of any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'fileq' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__():
        return sorted({*globals(), *_HOMES})
