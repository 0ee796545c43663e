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

# The names of each module; with a colon, its name there. Within the package another class has the shorter name.
_NAMES = {
    "client.async_client": ("AsyncBatch", "AsyncClient", "AsyncHandle"),
    "client.batch_handle": ("Batch:BatchHandle",),
    "client.client": ("Client",),
    "client.handle": ("Handle",),
    "client.tasks": ("Call:TaskCall", "Task:TaskFunction", "task"),
    "core.batch": ("BatchFacts",),
    "core.errors": (
        *("BatchError", "BrokerError", "BrokerUnavailable", "ConfigError", "FileqError", "JobError"),
        *("JobCancelled:JobCancelledError", "JobFailed:JobFailedError", "Permanent", "ResultExpired", "Retry"),
    ),
    "core.job": ("Job",),
    "handlers.context": ("Context", "JobView"),
    "handlers.extensions": ("EventView", "before_enqueue", "hook", "middleware"),
    "handlers.registry": ("handler",),
    "queries.documents": ("BatchDocument", "JobDocument", "Status:JobDocument"),
}
_HOMES = {name.partition(":")[0]: (module, name.rpartition(":")[2]) for module in _NAMES for name in _NAMES[module]}

if not TYPE_CHECKING:  # hidden from type checkers, which would take it for a promise of any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'fileq' has no attribute {name!r}")
        import importlib

        module, attribute = _HOMES[name]
        return getattr(importlib.import_module(f"fileq.{module}"), attribute)

    def __dir__():
        return sorted({*globals(), *_HOMES})
