"""Every key of the configuration: its type, its limits, its default and its help text.

Durations are in seconds, sizes in bytes, lists are tuples. `Config()` holds the default of every key.
This module reads no file and no environment variable; load.py does that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import field

from fileq.config.delivery_settings import DeliverySettings
from fileq.config.failure_settings import BackoffSettings, CircuitBreakerSettings
from fileq.config.kinds import (
    BrokerNameKind,
    DurationKind,
    ExitOrExceptionKind,
    FractionKind,
    IntegerKind,
    KeyNameKind,
    KeyPatternKind,
    OptionalKind,
    RateKind,
    SizeKind,
    TextKind,
)
from fileq.config.observability import ObservabilitySettings
from fileq.config.redis_schema import DEFAULT_PREFIX, RedisSettings
from fileq.config.schedule_settings import ScheduleNameKind, ScheduleSettings
from fileq.config.section import AtLeastOne, Key, NotAKey, Section, walk
from fileq.config.server_settings import ServerSettings
from fileq.config.value_types import (
    MOVE,
    After,
    Count,
    CountOrZero,
    Directory,
    Extension,
    Filled,
    Function,
    Glob,
    Isolation,
    JobType,
    Module,
    Priority,
    Seconds,
    SecondsOrZero,
)
from fileq.config.webhook_settings import WebhookSettings
from fileq.core.own_jobs import is_own_type
from fileq.core.units import Rate
from fileq.files.paths import Paths


class SqliteSettings(Section, frozen=True):
    path: Annotated[Filled, "the database file; must not be on a network file system"] = "./fileq.db"


class AfterSettings(Section, frozen=True):
    completed: Annotated[
        After, "the file of a completed job: keep, delete or move:DIR; a DIR below scan_dir is not scanned"
    ] = "keep"
    dead: Annotated[After, "the file of a dead job: keep, delete or move:DIR"] = "keep"

    def contradictions(self) -> Iterator[tuple[str, str]]:
        for name in ("completed", "dead"):
            rule = getattr(self, name)
            if rule.startswith(MOVE) and ("{" in rule or "}" in rule):
                yield name, f"is {rule!r}; DIR is used as it stands, without placeholders, and must not have braces"
            if rule.startswith(f"{MOVE}~"):
                yield name, f"is {rule!r}; ~ is not replaced by a home directory; write the whole path"

    @property
    def folders(self) -> tuple[str, ...]:
        """The DIR of each `move:DIR`."""
        return tuple(rule.removeprefix(MOVE) for rule in (self.completed, self.dead) if rule.startswith(MOVE))


class WorkerSettings(Section, frozen=True):
    count: Annotated[Count, "slots: maximum number of jobs that run at the same time"] = 16
    isolation: Annotated[
        Isolation,
        "process: a child process per slot (contains crashes, hard timeouts, all cores); thread: inside the worker",
    ] = "process"
    heartbeat_ttl: Annotated[
        float, DurationKind(minimum=3.0), "a slot without a heartbeat for this long loses its job; at least 3s"
    ] = 30.0
    reap_interval: Annotated[Seconds, "how often to look for jobs of dead workers"] = 5.0
    max_retries: Annotated[CountOrZero, "retries after a failure; a job runs at most max_retries + 1 times"] = 3
    max_recoveries: Annotated[CountOrZero, "how often a job runs again after its worker died; then the job is dead"] = 3
    timeout: Annotated[Seconds, "maximum duration of one attempt"] = 300.0
    shutdown_timeout: Annotated[SecondsOrZero, "how long running jobs may continue after a stop signal"] = 30.0
    max_memory: Annotated[
        int | None, SizeKind(), 'memory limit of a child process with its descendants, e.g. 512MB; "" = no limit'
    ] = None
    max_jobs_per_child: Annotated[CountOrZero, "a child process is replaced after this many jobs; 0 = no limit"] = 0
    capture_output: Annotated[bool, "log what handlers print as events; false: to the worker's stderr as it is"] = True
    allow_commands: Annotated[bool, "run shell commands that jobs contain (jobs of type command)"] = False
    pass_environment: Annotated[
        tuple[Filled, ...], "variables with secrets of fileq, such as REDIS_PASSWORD, that handlers and commands get"
    ] = ()
    backoff: Annotated[
        BackoffSettings,
        "delays between attempts; or a list of delays, [1s, 10s, 1m], used exactly; the last one repeats",
    ] = BackoffSettings()
    priorities: Annotated[tuple[Priority, ...], AtLeastOne, "names of the queues, most urgent first"] = ("high", "low")
    starvation_share: Annotated[
        float,
        FractionKind(allows_one=False),
        "every (1/share)th claim starts at a lower queue, at each of them in turn; 0 = strict priority",
    ] = 0.05
    queues: Annotated[
        Mapping[Priority, Annotated[str, KeyNameKind()]], "key of each queue; default: <redis.prefix>:<name>_priority"
    ] = field(default_factory=lambda: {name: f"{DEFAULT_PREFIX}:{name}_priority" for name in ("high", "low")})
    processing_list_pattern: Annotated[
        str, KeyPatternKind(), "key of the list that holds a slot's job; %s = the worker ID"
    ] = f"{DEFAULT_PREFIX}:worker:%s:processing"
    heartbeat_key_pattern: Annotated[str, KeyPatternKind(), "key of a slot's heartbeat; %s = the worker ID"] = (
        f"{DEFAULT_PREFIX}:processing:worker:%s"
    )
    completed_list: Annotated[str, KeyNameKind(), "key of the list of completed jobs"] = f"{DEFAULT_PREFIX}:completed"
    dead_letter_list: Annotated[str, KeyNameKind(), "key of the list of dead jobs"] = f"{DEFAULT_PREFIX}:dead_letter"
    completed_max: Annotated[Count, "number of completed jobs kept; older ones are removed with their records"] = 10_000
    history_ttl: Annotated[Seconds, "how long the record of an ended job is kept"] = 86_400.0
    brpoplpush_timeout: Annotated[Seconds, "maximum wait of one blocking call"] = 1.0
    path_map: Annotated[
        Mapping[Filled, Filled], "producer's path prefix: this worker's path prefix; the longest match is used"
    ] = field(default_factory=dict)
    allowed_roots: Annotated[
        tuple[Filled, ...], "files outside these directories are refused; [] = scan_dir after path_map"
    ] = ()
    safe_open: Annotated[
        bool, "give handlers the descriptor that was checked, /proc/self/fd/N, not the path; for untrusted inboxes"
    ] = False
    vanished: Annotated[
        Literal["dead", "skip"], "a job whose file no longer exists: dead, or skip (completed without running)"
    ] = "dead"
    after: Annotated[AfterSettings, "what happens to the file when its job has ended"] = AfterSettings()

    def processing_list(self, slot: str) -> str:
        return self.processing_list_pattern.replace("%s", slot)

    def heartbeat_key(self, slot: str) -> str:
        return self.heartbeat_key_pattern.replace("%s", slot)


class ProducerSettings(Section, frozen=True):
    scan_dir: Annotated[Directory, "the directory to watch"] = "./data"
    include_globs: Annotated[
        tuple[Glob, ...],
        AtLeastOne,
        "files to take; *.pdf: of the top level only, **/*.pdf: of any depth, also none; case-sensitive",
    ] = ("**/*",)
    exclude_globs: Annotated[tuple[Glob, ...], "files to skip even if include_globs matches them"] = (
        "**/*.tmp",
        "**/.DS_Store",
    )
    default_priority: Annotated[str, "one of worker.priorities; if unset: low, or the last one if there is no low"] = (
        "low"
    )
    high_priority_exts: Annotated[
        tuple[Extension, ...], "extensions (case-insensitive) of files for the high queue"
    ] = (".pdf", ".docx", ".xlsx", ".zip")
    rate_limit_per_sec: Annotated[
        int | None,
        OptionalKind(IntegerKind()),
        "new files per second; ~ = 100 on redis, no limit on sqlite and memory; 0 = no limit",
    ] = None
    rate_limit_key: Annotated[str, KeyNameKind(), "key of the counter that all producers share"] = (
        f"{DEFAULT_PREFIX}:rate_limit:producer"
    )
    watch: Annotated[
        Literal["auto", "events", "poll", "off"],
        "auto, events, poll or off; auto polls where file system events do not arrive",
    ] = "auto"
    poll_interval: Annotated[Seconds, "time between polls; at least twice the duration of the last scan"] = 1.0
    rescan_interval: Annotated[Seconds, "time between full scans, which find files that events missed"] = 60.0
    settle: Annotated[SecondsOrZero, "how long a file must be unchanged after a close or move-in event"] = 0.5
    settle_unclosed: Annotated[
        SecondsOrZero,
        "how long a file must be unchanged without such an event (scan, polling); on local disks since its mtime",
    ] = 5.0
    ready_suffix: Annotated[
        str,
        TextKind(r"[^/]*", "a suffix such as .done"),
        'e.g. ".done": a file is taken once its marker exists, which is then removed',
    ] = ""
    identity: Annotated[
        Literal["stat", "inode", "content"],
        "what makes a file a new version: stat = size or mtime, inode = also another inode, content = other content",
    ] = "inode"
    follow_symlinks: Annotated[bool, "follow symbolic links that stay within scan_dir"] = False
    max_pending: Annotated[CountOrZero, "pause while this many jobs are waiting; 0 = never"] = 0
    imports: Annotated[
        tuple[Module, ...], "Python modules that a producer imports (those with @fileq.before_enqueue)"
    ] = ()
    deliveries: Annotated[
        tuple[DeliverySettings, ...],
        "directories whose files are a batch: match, complete, deadline, allow_failures, then, catch, done_marker",
    ] = ()


class RouteSettings(Section, frozen=True):
    """Which handler gets which jobs. An option that is None is the worker's; resolve.py computes that."""

    is_sparse: ClassVar[bool] = True

    name: Annotated[Filled | None, "name of the route; default: its type or its glob"] = None
    match: Annotated[Glob | None, "glob of the files, as in producer.include_globs"] = None
    type: Annotated[Filled | None, "type of the jobs"] = None
    use: Annotated[Function | None, "package.module:function"] = None
    command: Annotated[tuple[str, ...] | None, "the program and its arguments"] = None
    timeout: Annotated[Seconds | None, "like worker.timeout"] = None
    max_retries: Annotated[CountOrZero | None, "like worker.max_retries"] = None
    backoff: Annotated[BackoffSettings | None, "like worker.backoff; keys that are not set are the worker's"] = None
    isolation: Annotated[Isolation | None, "like worker.isolation"] = None
    in_place: Annotated[bool, "the handler may change its file"] = False
    safe_open: Annotated[bool | None, "like worker.safe_open; if unset: false for routes that are in_place"] = None
    give_up_on: Annotated[
        tuple[Annotated[int | str, ExitOrExceptionKind()], ...],
        "exit codes and exceptions after which a job is not retried",
    ] = ()
    circuit_breaker: Annotated[CircuitBreakerSettings | None, "like circuit_breaker; keys not set are its"] = None
    max_running: Annotated[Count | None, "most jobs of the route that run at the same time in one worker process"] = (
        None
    )
    max_running_total: Annotated[Count | None, "most jobs of the route that run at the same time in all workers"] = None
    rate: Annotated[Rate | None, RateKind(), "most jobs of the route that all workers start: 10/s, 100/m, 1000/h"] = (
        None
    )
    on_completed: Annotated[JobType | None, "type of a job to enqueue when a job of the route is completed"] = None
    on_dead: Annotated[JobType | None, "type of a job to enqueue when a job of the route is dead"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        for one, other in (("match", "type"), ("use", "command")):
            given = [name for name in (one, other) if getattr(self, name) is not None]
            if not given:
                yield "", f"has neither {one} nor {other}; give one of them"
            elif len(given) == 2:
                yield "", f"has both {one} and {other}; keep one of them"
        if self.command is not None and not (self.command and self.command[0]):
            yield "command", "is empty; give the program and its arguments"
        if is_own_type(self.type):
            yield "type", f"is {self.type!r}; types that begin with 'fileq.' are fileq's own"
        for name in ("on_completed", "on_dead"):
            if self.type is not None and getattr(self, name) == self.type:
                yield (
                    name,
                    f"is {self.type!r}, the type of the route itself; its jobs would follow each other endlessly",
                )


class Config(Section, frozen=True):
    """The whole configuration. load() creates it; nothing changes it afterwards."""

    broker: Annotated[
        str, BrokerNameKind(), 'redis, sqlite or memory; "" = redis if redis.addr or redis.url is set, else sqlite'
    ] = ""
    sqlite: Annotated[SqliteSettings, "the embedded broker, for one machine"] = SqliteSettings()
    redis: Annotated[RedisSettings, "the broker for several machines"] = RedisSettings()
    worker: Annotated[WorkerSettings, "runs jobs"] = WorkerSettings()
    producer: Annotated[ProducerSettings, "finds files"] = ProducerSettings()
    imports: Annotated[tuple[Module, ...], "Python modules to import (those with @fileq.handler)"] = ()
    handlers: Annotated[
        tuple[RouteSettings, ...], "routes; the first match wins; they come before decorated handlers"
    ] = (RouteSettings(match="**/*", use="fileq.handlers:checksum"),)
    handlers_are_given: Annotated[bool, NotAKey] = False  # whether a source set `handlers`; load() fills it in
    middleware: Annotated[
        tuple[Function, ...], "functions around every handler, outermost first; [] = those with @fileq.middleware"
    ] = ()
    schedules: Annotated[
        Mapping[Annotated[str, ScheduleNameKind()], ScheduleSettings],
        "jobs at certain times, by name; the keys of each: " + ", ".join(ScheduleSettings.__struct_fields__),
    ] = field(default_factory=dict)
    circuit_breaker: Annotated[CircuitBreakerSettings, "one for each route; defers its jobs while many fail"] = (
        CircuitBreakerSettings()
    )
    webhooks: Annotated[WebhookSettings, "tell other programs about jobs, see docs/webhooks.md"] = WebhookSettings()
    server: Annotated[ServerSettings, "the REST API, see docs/api.md"] = ServerSettings()
    observability: Annotated[ObservabilitySettings, "metrics, logs, traces"] = ObservabilitySettings()

    @property
    def paths(self) -> Paths:
        """Maps the producers' paths to this machine and checks them against the allowed roots."""
        worker = self.worker
        return Paths(self.producer.scan_dir, worker.path_map, worker.allowed_roots, worker.after.folders)

    @property
    def broker_kind(self) -> str:
        """The broker to open: the value of `broker`, else the one that the redis settings imply."""
        return self.broker or ("redis" if self.redis.url or self.redis.addr else "sqlite")

    @property
    def broker_location(self) -> str:
        """Where that broker is, without credentials. Empty for a broker from another package."""
        known = {"redis": self.redis.location, "sqlite": self.sqlite.path, "memory": "this process only"}
        return known.get(self.broker_kind, "")

    @property
    def high_priority(self) -> str:
        """The queue for `high_priority_exts`: `high`, or the most urgent one if there is no `high`."""
        priorities = self.worker.priorities
        return "high" if "high" in priorities else priorities[0]


@functools.cache
def every_key() -> Mapping[str, Key]:
    """Dotted path to key. A section comes before its own keys."""
    return dict(walk(Config))


def is_setting(key: Key) -> bool:
    """Whether the key can be set by itself. A section can only if a plain list may replace it."""
    return not isinstance(key.shape, type) or bool(key.shape.list_field)
