"""fileq: drop a file into a directory; it is queued once, processed, retried and never lost.

    @fileq.handler("**/*.pdf")
    def extract(job: fileq.JobView, context: fileq.Context) -> dict: ...

    @fileq.task("thumbnail")
    def thumbnail(job: fileq.JobView[Thumb], context: fileq.Context) -> str: ...

    thumbnail.enqueue(Thumb("/in/a.png")).wait()

Importing this package must stay instant: no import here; what programs need is loaded when they name it.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fileq.client.async_client import AsyncBatch as AsyncBatch
    from fileq.client.async_client import AsyncClient as AsyncClient
    from fileq.client.async_client import AsyncHandle as AsyncHandle
    from fileq.client.batch_handle import BatchHandle as Batch
    from fileq.client.client import Client as Client
    from fileq.client.handle import Handle as Handle
    from fileq.client.tasks import Task as Task
    from fileq.client.tasks import TaskCall as Call
    from fileq.client.tasks import task as task
    from fileq.core.batch import BatchFacts as BatchFacts
    from fileq.core.errors import BatchError as BatchError
    from fileq.core.errors import BrokerError as BrokerError
    from fileq.core.errors import BrokerUnavailable as BrokerUnavailable
    from fileq.core.errors import ConfigError as ConfigError
    from fileq.core.errors import FileqError as FileqError
    from fileq.core.errors import JobCancelledError as JobCancelled
    from fileq.core.errors import JobError as JobError
    from fileq.core.errors import JobFailedError as JobFailed
    from fileq.core.errors import Permanent as Permanent
    from fileq.core.errors import ResultExpired as ResultExpired
    from fileq.core.errors import Retry as Retry
    from fileq.core.job import Job as Job
    from fileq.handlers.context import Context as Context
    from fileq.handlers.context import JobView as JobView
    from fileq.handlers.extensions import EventView as EventView
    from fileq.handlers.extensions import before_enqueue as before_enqueue
    from fileq.handlers.extensions import hook as hook
    from fileq.handlers.extensions import middleware as middleware
    from fileq.handlers.registry import handler as handler
    from fileq.queries.documents import BatchDocument as BatchDocument
    from fileq.queries.documents import JobDocument as JobDocument

    Status = JobDocument  # what status() of a handle returns
    __all__ = ["Batch", "Call", "JobCancelled", "JobFailed"]

__version__ = "0.1.0"

# The module of each name; with a colon, its name there. Within the package another class has the shorter name.
_HOMES = {
    "AsyncBatch": "fileq.client.async_client",
    "AsyncClient": "fileq.client.async_client",
    "AsyncHandle": "fileq.client.async_client",
    "Batch": "fileq.client.batch_handle:BatchHandle",
    "BatchDocument": "fileq.queries.documents",
    "BatchError": "fileq.core.errors",
    "BatchFacts": "fileq.core.batch",
    "BrokerError": "fileq.core.errors",
    "BrokerUnavailable": "fileq.core.errors",
    "Call": "fileq.client.tasks:TaskCall",
    "Client": "fileq.client.client",
    "ConfigError": "fileq.core.errors",
    "Context": "fileq.handlers.context",
    "EventView": "fileq.handlers.extensions",
    "FileqError": "fileq.core.errors",
    "Handle": "fileq.client.handle",
    "Job": "fileq.core.job",
    "JobCancelled": "fileq.core.errors:JobCancelledError",
    "JobDocument": "fileq.queries.documents",
    "JobError": "fileq.core.errors",
    "JobFailed": "fileq.core.errors:JobFailedError",
    "JobView": "fileq.handlers.context",
    "Permanent": "fileq.core.errors",
    "ResultExpired": "fileq.core.errors",
    "Retry": "fileq.core.errors",
    "Status": "fileq.queries.documents:JobDocument",
    "Task": "fileq.client.tasks:TaskFunction",
    "before_enqueue": "fileq.handlers.extensions",
    "handler": "fileq.handlers.registry",
    "hook": "fileq.handlers.extensions",
    "middleware": "fileq.handlers.extensions",
    "task": "fileq.client.tasks",
}

if not TYPE_CHECKING:  # hidden from type checkers, which would take it for a promise of any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'fileq' has no attribute {name!r}")
        import importlib

        module, _, attribute = _HOMES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)

    def __dir__():
        return sorted({*globals(), *_HOMES})
