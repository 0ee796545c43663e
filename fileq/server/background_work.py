"""What a server does beside answering requests: operations, samples of the counts, removal of abandoned uploads."""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.commands.action_log import ActionLog
from fileq.commands.bulk_actions import BulkActions
from fileq.commands.operations import OperationStore
from fileq.config import Config
from fileq.core.events import Emit
from fileq.server.live_samples import LiveSamples
from fileq.server.operation_runner import OperationRunner
from fileq.server.upload_sweep import UploadSweep


class BackgroundWork:
    """One for a server. A read-only server works on no operation: it changes nothing."""

    def __init__(self, config: Config, broker: FullBroker, *, emit: Emit, now_ms: Callable[[], int]) -> None:
        self._is_read_only = config.server.read_only
        self.actions = BulkActions(broker, config, now_ms)
        self.operations = OperationStore(broker, now_ms)
        self.action_log = ActionLog(broker, now_ms)
        self.runner = OperationRunner(self.operations, self.actions, emit, self.action_log)
        self.samples = LiveSamples(broker)
        self._sweep = UploadSweep(config.server.upload_dir, emit)

    def start(self) -> None:
        self.samples.start()
        if not self._is_read_only:
            self.runner.start()
            self._sweep.start()

    def stop(self, timeout_s: float) -> None:
        self.samples.stop()
        self._sweep.stop()
        self.runner.stop(timeout_s)
