"""The `on_dead` of jobs that fsck buries, and the deliveries about all that it gives back. Imports the handlers, but
only if a job is buried."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.core.settlement import Settlement, Verb
from fileq.webhooks.subscriptions import Subscriptions, current_subscriptions
from fileq.worker.reaper import AddFollowUps


class OnDead:
    """Adds what follows from a settlement. ConfigError, before anything is changed, if the routes can't be loaded."""

    def __init__(self, config: Config, app_dir: str, broker: FullBroker) -> None:
        self._config = config
        self._app_dir = app_dir
        self._broker = broker
        self._add: AddFollowUps | None = None
        self._subscriptions: Subscriptions | None = None

    def __call__(self, settlement: Settlement) -> Settlement:
        settlement = self._chained(settlement)
        if self._subscriptions is None:
            self._subscriptions = current_subscriptions(self._broker, self._config)
        deliveries = self._subscriptions.settled(settlement, wall_clock_ms())
        return replace(settlement, follow_ups=(*settlement.follow_ups, *deliveries)) if deliveries else settlement

    def _chained(self, settlement: Settlement) -> Settlement:
        if settlement.verb is not Verb.BURY or not self._may_be_any():
            return settlement
        if self._add is None:
            self._add = self._load(settlement)
        return self._add(settlement)

    def _may_be_any(self) -> bool:
        """Whether a route has `on_dead`, or a module may define one that has."""
        handlers = self._config.handlers
        return bool(self._config.imports) or any(
            route.on_dead or (route.use is not None and not route.use.startswith("fileq.")) for route in handlers
        )

    def _load(self, settlement: Settlement) -> AddFollowUps:
        from fileq.handlers.routes import Routes
        from fileq.worker.follow_ups import FollowUps

        try:
            return FollowUps(Routes.load(self._config, app_dir=self._app_dir), self._config.paths).added
        except ConfigError as error:
            advice = "give --app-dir, or leave the job to a worker"
            first = f"job {settlement.claim.id} is to be buried, and the on_dead of its route can't be read; {advice}"
            raise ConfigError([first, *error.problems]) from error
