"""Actions on many jobs, as commands and the API do them."""

from fileq.actions.bulk import ActionReport, BulkActions, JobAction
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.queries.job_filter import JobFilter

ALL = JobFilter()


def act_on_all(
    broker: FullBroker, config: Config, action: JobAction, wanted: JobFilter = ALL, cutoff_ms: int | None = None
) -> ActionReport:
    actions = BulkActions(broker, config)
    return actions.begin(action, actions.matching(action, wanted), cutoff_ms=cutoff_ms).complete()
