"""The events of processes, threads and connections, as opposed to those of jobs and files in events.py."""

from __future__ import annotations

from fileq.core.events import Event


class BrokerOpened(Event, frozen=True):
    """At start: the broker, where it is, and the setting that chose it."""

    name = "broker.opened"

    broker: str
    where: str
    chosen: str


class BrokerUnsafe(Event, frozen=True):
    """The broker may lose data, or a check of `fileq doctor` failed."""

    name = "broker.unsafe"
    level = "warning"

    check: str
    reason: str
    action: str


class BrokerLost(Event, frozen=True):
    """The broker is unreachable. Logged once per outage."""

    name = "broker.lost"
    level = "warning"

    error: str


class BrokerRestored(Event, frozen=True):
    """The broker answers again after this many seconds."""

    name = "broker.restored"

    seconds: float


class BrokerRefused(Event, frozen=True):
    """The broker answers but refuses the worker's calls; an operator has to fix it."""

    name = "broker.refused"
    level = "error"

    error: str


class ConfigReloaded(Event, frozen=True):
    """After SIGHUP: `handlers` were imported again, `changed` is in use now, `needs_restart` is not.

    A process without a worker has no `routes` and `handlers`."""

    name = "config.reloaded"

    changed: list[str]
    needs_restart: list[str]
    routes: int | None
    handlers: list[str] | None


class ConfigRefused(Event, frozen=True):
    """After SIGHUP: the new configuration or its handlers have errors, or would lose a type that the worker serves.
    Nothing was changed."""

    name = "config.refused"
    level = "error"

    problems: list[str]
    reason: str


class BrokerDataRemoved(Event, frozen=True):
    """The database file was deleted or replaced while in use; the process ends with exit code 1."""

    name = "broker.removed"
    level = "error"

    error: str


class BreakerChanged(Event, frozen=True):
    """The breaker of a route changed its state. `error` is the last failure, `failure_share` counts those in the window
    when it opened, `next_probe_s` is the time until one job is tried."""

    was: str
    route: str = ""
    error: str | None = None
    failure_share: float | None = None
    next_probe_s: float | None = None


class BreakerOpened(BreakerChanged, frozen=True):
    """Too many attempts of a route failed: its jobs are deferred, the others run."""

    name = "breaker.opened"
    level = "warning"


class BreakerHalfOpened(BreakerChanged, frozen=True):
    """The cooldown is over, and the next job of the route is the probe; or an operator tries one before."""

    name = "breaker.half_opened"


class BreakerClosed(BreakerChanged, frozen=True):
    """The probe succeeded, an operator reset the breaker, or no job of the route came for `circuit_breaker.window`: the
    jobs of the route run again."""

    name = "breaker.closed"


class RootLost(Event, frozen=True):
    """A root of the files is missing, not accessible or does not answer: its file jobs are deferred."""

    name = "root.lost"
    level = "warning"

    path: str
    reason: str
    action: str


class RootRestored(Event, frozen=True):
    """A root of the files is back: its file jobs run again."""

    name = "root.restored"

    path: str


class SlotReplaced(Event, frozen=True):
    """The broker no longer knows the slot `lost`; it continues as `worker_id`."""

    name = "slot.replaced"
    level = "warning"

    lost: str
    worker_id: str


class VariableIgnored(Event, frozen=True):
    """A variable of the environment names no setting, and is similar to one that does. It has no effect."""

    name = "variable.ignored"
    level = "warning"

    variable: str
    action: str


class HandlersUnset(Event, frozen=True):
    """No handler is configured, so files are only checksummed."""

    name = "handlers.unset"
    level = "warning"

    action: str


class HandlersWarned(Event, frozen=True):
    """A handler is configured in a way that is probably a mistake."""

    name = "handlers.warned"
    level = "warning"

    reason: str


class RoleStarted(Event, frozen=True):
    """All services run. `directory`: `scan_dir`. `routes` and `handlers`: how many routes a worker has, and to what."""

    name = "role.started"

    directory: str
    broker: str
    routes: int | None
    handlers: list[str] | None
    services: list[str]


class RoleStopping(Event, frozen=True):
    """The role stops because of `signal`, for example SIGTERM; without it, because of a fatal error."""

    name = "role.stopping"

    signal: str | None


class RoleStopped(Event, frozen=True):
    """All services have ended."""

    name = "role.stopped"


class DrainStarted(Event, frozen=True):
    """The worker no longer claims; running jobs may finish."""

    name = "worker.drain_started"

    running: int
    action: str


class WorkerFailed(Event, frozen=True):
    """A defect in fileq ended the worker's loop; the process ends with exit code 1."""

    name = "worker.failed"
    level = "error"
    hidden = ("exception",)

    error: str
    exception: BaseException


class LoopFailed(Event, frozen=True):
    """A defect in fileq: a turn of this loop raised an unexpected error. The loop continues."""

    name = "loop.failed"
    level = "error"
    hidden = ("exception",)

    loop: str
    error: str
    exception: BaseException


class ChildReplaced(Event, frozen=True):
    """A job left its child process in a state that can't be restored; the next job gets another child."""

    name = "child.replaced"
    level = "debug"

    reason: str


class ChildStartFailed(Event, frozen=True):
    """A child process could not be started; the start is repeated."""

    name = "child.start_failed"
    level = "error"

    error: str


class ForkServerDied(Event, frozen=True):
    """The process that starts children died; a new one is started."""

    name = "forkserver.died"
    level = "error"

    cause: str


class ForkServerFailed(Event, frozen=True):
    """The process that starts children could not be started again; the start is repeated."""

    name = "forkserver.failed"
    level = "error"

    problems: list[str]


class ForkServerStarted(Event, frozen=True):
    """The process that starts children runs again."""

    name = "forkserver.started"


class ProcessAbandoned(Event, frozen=True):
    """A process that a handler started cannot be killed (it hangs in the kernel) and outlives the worker."""

    name = "process.abandoned"
    level = "warning"


class ThreadAbandoned(Event, frozen=True):
    """A handler in a thread did not stop; a new thread replaces its thread."""

    name = "thread.abandoned"
    level = "warning"

    worker_id: str
    reason: str
    job_id: str | None = None
    filepath: str | None = None
    type: str | None = None


class HttpOpened(Event, frozen=True):
    """Where `/metrics`, `/healthz` and `/readyz` are served."""

    name = "http.opened"

    bind: str
    port: int


class AcceptStopped(Event, frozen=True):
    """A port of this process accepts no clients, for want of descriptors or memory. It is tried again all the time."""

    name = "accept.stopped"
    level = "warning"

    port: int
    reason: str


class AcceptResumed(Event, frozen=True):
    """The port accepts clients again."""

    name = "accept.resumed"

    port: int


class HttpPortTaken(Event, frozen=True):
    """The default port is in use, so a free one was chosen."""

    name = "http.port_taken"
    level = "warning"

    wanted: int
    port: int


class CollectorLost(Event, frozen=True):
    """Spans cannot be sent to the collector. Logged once per outage."""

    name = "collector.lost"
    level = "warning"

    error: str
    action: str


class CollectorRestored(Event, frozen=True):
    """The collector accepts spans again; `dropped` spans were lost."""

    name = "collector.restored"

    seconds: float
    dropped: int
