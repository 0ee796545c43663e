"""Every key of the configuration: its type, its limits, its default and its help text.

Durations are in seconds, sizes in bytes, lists are tuples. `Config()` holds the default of every key.
This module reads no file and no environment variable; load.py does that.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from msgspec import field

from fileq.config.http_settings import ServerSettings, WebhookSettings
from fileq.config.section import AnyMapping, AtLeastOne, Key, NotAKey, Section, walk
from fileq.config.value_types import (
    MOVE,
    OTLP_URL,
    REDIS_URL,
    UTF8,
    AddressKind,
    After,
    BrokerNameKind,
    Count,
    CountOrZero,
    Directory,
    DurationKind,
    ExitOrExceptionKind,
    Extension,
    Filled,
    FilledUtf8,
    FractionKind,
    Function,
    Glob,
    GlobInUtf8,
    IntegerKind,
    Isolation,
    JobType,
    KeyNameKind,
    KeyPatternKind,
    Module,
    OptionalKind,
    Port,
    Priority,
    RateKind,
    Seconds,
    SecondsOrZero,
    SecretKind,
    SizeKind,
    SlotCount,
    TextKind,
    ValueKind,
    mask_credentials,
    split_address,
)
from fileq.core import schedule
from fileq.core.own_jobs import is_own_type
from fileq.core.units import Rate
from fileq.files.paths import Paths

# what follows a failed attempt


class BackoffSettings(Section, frozen=True):
    """How long to wait before the next attempt: by a formula, or `delays`, which a plain list sets."""

    list_field: ClassVar[str] = "delays"

    strategy: Annotated[
        Literal["exponential", "linear", "fixed", "power"],
        "delay after n failures: exponential base·2^(n-1), linear base·n, fixed base, power (base in seconds)^n",
    ] = "exponential"
    base: Annotated[SecondsOrZero, "base of the formula; above 1s for power"] = 0.5
    max: Annotated[SecondsOrZero, "maximum delay"] = 10.0
    jitter: Annotated[
        float, FractionKind(), "each delay is multiplied by a random factor from 1 - jitter to 1 + jitter"
    ] = 0.2
    delays: Annotated[tuple[SecondsOrZero, ...], AtLeastOne, NotAKey] = ()

    @classmethod
    def from_list(cls, items: tuple[float, ...]) -> Self:
        """Listed delays are used exactly: without jitter and without a cap."""
        return cls(delays=items, jitter=0.0, max=max(items))


class CircuitBreakerSettings(Section, frozen=True):
    enabled: Annotated[bool, "defer the jobs of a route while most of its attempts fail"] = True
    failure_threshold: Annotated[
        float, FractionKind(allows_zero=False), "share of failures that opens the breaker of a route"
    ] = 0.5
    window: Annotated[Seconds, "period over which failures are counted"] = 60.0
    cooldown_period: Annotated[Seconds, "how long an open breaker waits before it tries one job"] = 30.0
    min_samples: Annotated[Count, "attempts in the window before a breaker can open"] = 20


# metrics, logs and traces


class TracingSettings(Section, frozen=True):
    enabled: Annotated[bool, "send spans"] = False
    endpoint: Annotated[str, OTLP_URL, "OTLP collector: http(s)://… or grpc://…"] = ""


class ObservabilitySettings(Section, frozen=True):
    metrics_port: Annotated[Port, "port of /metrics, /healthz and /readyz; 0 = any free port"] = 9090
    metrics_bind: Annotated[
        Filled, "address to listen on; there is no password, so every host that can reach it can read the metrics"
    ] = "0.0.0.0"
    log_level: Annotated[Literal["debug", "info", "warn", "error"], "debug, info, warn or error"] = "info"
    log_format: Annotated[Literal["auto", "console", "json"], "auto: console on a terminal, else json"] = "auto"
    stats_retention: Annotated[Seconds, "how long hourly counters are kept"] = 30 * 86_400.0
    tracing: Annotated[TracingSettings, "OpenTelemetry"] = TracingSettings()


# Redis: where the server is, how to log in, timeouts

DEFAULT_PREFIX = "jobqueue"
DEFAULT_ADDRESS = "localhost:6379"


class TlsSettings(Section, frozen=True):
    enabled: Annotated[bool, "encrypt the connection"] = False
    ca_file: Annotated[str, 'CA certificates to trust; "" = those of the system'] = ""
    cert_file: Annotated[str, "client certificate file"] = ""
    key_file: Annotated[str, "private key file of the client certificate"] = ""


class RedisSettings(Section, frozen=True):
    addr: Annotated[str, AddressKind(), "host:port; with broker: redis and no url the default is localhost:6379"] = ""
    url: Annotated[
        str,
        REDIS_URL,
        "redis:// rediss:// unix:// redis+sentinel://h1,h2/master/0 redis+cluster://h1,h2; "
        "overrides addr; username and password override those in the URL",
    ] = ""
    username: Annotated[str, UTF8, "user name for Redis's access control lists"] = ""
    password: Annotated[str, SecretKind(), "password; prefer password_file or the environment"] = ""
    password_file: Annotated[str, "file that holds the password, instead of password; a change needs no restart"] = ""
    db: Annotated[CountOrZero, "database number"] = 0
    prefix: Annotated[str, KeyNameKind(), "prefix of every key name that has no setting of its own"] = DEFAULT_PREFIX
    tls: Annotated[TlsSettings, "encryption; a rediss:// URL enables it too"] = TlsSettings()
    pool_size_multiplier: Annotated[Count, "maximum number of connections = this × CPUs"] = 10
    min_idle_conns: Annotated[CountOrZero, "connections opened at start"] = 5
    dial_timeout: Annotated[Seconds, "maximum wait for a connection"] = 5.0
    read_timeout: Annotated[Seconds, "maximum wait for a reply"] = 3.0
    write_timeout: Annotated[Seconds, "maximum wait until a request is sent"] = 3.0
    max_retries: Annotated[CountOrZero, "retries of calls that are safe to repeat"] = 3

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Host and port of `addr` or of its default. `url` takes precedence over both."""
        return split_address(self.addr or DEFAULT_ADDRESS) or ("localhost", 6379)

    @property
    def location(self) -> str:
        """Where Redis is, without credentials."""
        return mask_credentials(self.url or self.addr or DEFAULT_ADDRESS)


# deliveries: directories whose files are a batch, and when it is complete

_FILE_NAME = r"(?s)[^/\0]+"
FAILED_MARKER = "_FILEQ_FAILED"


class CompleteSettings(Section, frozen=True):
    """When a delivery is complete: exactly one of these."""

    is_sparse: ClassVar[bool] = True

    marker: Annotated[str | None, TextKind(_FILE_NAME, "the name of a file"), "a file of this name exists"] = None
    manifest: Annotated[
        str | None, TextKind(_FILE_NAME, "a glob of names such as *.manifest.json"), "all files of this list exist"
    ] = None
    files: Annotated[Count | None, "this many files exist"] = None
    quiet: Annotated[Seconds | None, "no file arrived or changed in this time"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from self.exactly_one(*self.__struct_fields__)


class DeliverySettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    match: Annotated[
        str,
        TextKind(r"(?s)[^/].*/", "a glob of directories that ends with a slash, such as acme/*/"),
        "which directories",
    ] = ""
    complete: Annotated[CompleteSettings, "when it is complete: marker, manifest, files or quiet"] = CompleteSettings()
    deadline: Annotated[Seconds | None, "after its first file; then it is sealed as incomplete, and catch is due"] = (
        None
    )
    allow_failures: Annotated[bool, "continue with the other files when one is dead"] = False
    then: Annotated[JobType | None, "type of a job to enqueue when all files are completed"] = None
    catch: Annotated[JobType | None, "type of a job to enqueue when the first file is dead"] = None
    done_marker: Annotated[
        str,
        TextKind(r"(?s)[^/\0]*", "the name of a file"),
        f"file to write into the directory at the end; {FAILED_MARKER} if a file failed",
    ] = ""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if not self.match:
            yield "", "has no match; say which directories"
        if self.complete == CompleteSettings():
            yield "", "has no complete; say when a delivery is complete"
        if self.done_marker and self.done_marker in (self.complete.marker, FAILED_MARKER):
            yield "done_marker", f"is {self.done_marker!r}, which has another meaning here; choose another name"


# schedules, and what each means: a definition for the broker. A schedule makes jobs of a type, or reprocesses known
# files, or scans a directory. The last two are jobs of fileq's own.

NAME_RULE = "[A-Za-z0-9._-]{1,100}"  # as brokers.catalog has it


class CronKind(ValueKind, frozen=True):
    expects = schedule.EXPECTS

    def read(self, text: str) -> str:
        schedule.parsed(text)
        return text


class ZoneKind(ValueKind, frozen=True):
    expects = "a time zone such as Europe/Berlin"

    def read(self, text: str) -> str:
        schedule.zone_of(text)
        return text


class MissedKind(ValueKind, frozen=True):
    expects = f"skip, last or all:N, with N from 1 to {schedule.MOST_MADE_UP}"

    def read(self, text: str) -> str:
        word = text.strip().lower()
        number = re.fullmatch(r"all:(\d{1,4})", word)
        if word in ("skip", "last") or (number and 1 <= int(number[1]) <= schedule.MOST_MADE_UP):
            return word
        raise ValueError(self.expects)


class ReprocessSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    match: Annotated[GlobInUtf8 | None, "only files whose path matches this glob, as for `fileq reprocess --match`"] = (
        None
    )
    since: Annotated[Seconds | None, "only files that were modified in this time before the run, e.g. 1d"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.match is None and self.since is None:
            yield "", "has neither match nor since; give at least one, match: '**/*' for all files"


class ScheduleSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    cron: Annotated[str, CronKind(), "when: 5 fields, @hourly, @daily, @weekly, @monthly, @yearly or '@every 15m'"] = ""
    timezone: Annotated[str, ZoneKind(), "IANA name of the zone in which cron is meant"] = "UTC"
    type: Annotated[JobType | None, "the type of the jobs, which a route or a task takes"] = None
    payload: Annotated[AnyMapping | None, "the payload of the jobs, with scheduled_for and missed added"] = None
    reprocess: Annotated[ReprocessSettings | None, "instead of a type: process known files again"] = None
    scan: Annotated[FilledUtf8 | None, "instead of a type: enqueue the new files of this directory once"] = None
    priority: Annotated[Priority | None, "queue of the jobs; default: the task's, or producer.default_priority"] = None
    missed: Annotated[str, MissedKind(), "which missed times still run: skip, last or all:N"] = "last"
    overlap: Annotated[
        Literal["allow", "skip", "queue", "cancel"], "what happens while the last job of the schedule is unfinished"
    ] = "skip"
    within: Annotated[Seconds, "a time that would fire later than this is missed"] = 600.0
    paused: Annotated[bool, "define it without firing it"] = False
    max_retries: Annotated[CountOrZero | None, "of its jobs, instead of the route's"] = None
    timeout: Annotated[Seconds | None, "of its jobs, instead of the route's"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if not self.cron:
            yield "", "has no cron; say when it is due"
        yield from self.exactly_one("type", "reprocess", "scan")
        if self.payload is not None and self.type is None:
            yield "payload", "goes with a type only"
        elif self.payload is not None and (problem := schedule.payload_problem(self.payload)):
            yield "payload", f"can't be used: {problem}"

    @property
    def definition(self) -> schedule.ScheduleDefinition:
        type, payload = self.type or "", dict(self.payload or {})
        if self.scan is not None:
            type, payload = schedule.SCAN_TYPE, {"dir": self.scan}
        elif self.reprocess is not None:
            given = {"match": self.reprocess.match, "since_s": self.reprocess.since}
            type, payload = schedule.REPROCESS_TYPE, {key: value for key, value in given.items() if value is not None}
        return schedule.ScheduleDefinition(
            cron=self.cron,
            timezone=self.timezone,
            type=type,
            payload=payload,
            priority=self.priority or "",
            missed=self.missed,
            overlap=self.overlap,
            within_s=self.within,
            max_retries=self.max_retries,
            timeout_s=self.timeout,
        )


# the other sections, and the whole


class SqliteSettings(Section, frozen=True):
    path: Annotated[Filled, "the database file; must not be on a network file system"] = "./fileq.db"


class AfterSettings(Section, frozen=True):
    completed: Annotated[
        After,
        "what to do with the file of a completed job: keep, delete or move:DIR; a DIR below scan_dir is not scanned",
    ] = "keep"
    dead: Annotated[After, "what to do with the file of a dead job: keep, delete or move:DIR"] = "keep"

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
    count: Annotated[SlotCount, "slots: maximum number of concurrent jobs; at most 1024"] = 16
    isolation: Annotated[
        Isolation,
        "process: a child process per slot (contains crashes, hard timeouts, all cores); thread: inside the worker",
    ] = "process"
    heartbeat_ttl: Annotated[
        float, DurationKind(minimum=3.0), "a slot without a heartbeat for this long loses its job; at least 3s"
    ] = 30.0
    reap_interval: Annotated[Seconds, "how often to look for jobs of dead workers"] = 5.0
    max_retries: Annotated[CountOrZero, "retries after a failure; a job runs at most max_retries + 1 times"] = 3
    max_recoveries: Annotated[CountOrZero, "how often a job is rerun after its worker died; then it is dead"] = 3
    timeout: Annotated[Seconds, "maximum duration of one attempt"] = 300.0
    shutdown_timeout: Annotated[SecondsOrZero, "how long running jobs may continue after a stop signal"] = 30.0
    max_memory: Annotated[
        int | None,
        SizeKind(),
        "memory limit of a child process with its descendants, and of a delivery that a scheduled scan examines, "
        'e.g. 512MB; "" = no limit',
    ] = None
    max_jobs_per_child: Annotated[CountOrZero, "a child process is replaced after this many jobs; 0 = no limit"] = 0
    capture_output: Annotated[bool, "log handler output as events; false: pass it to the worker's stderr unchanged"] = (
        True
    )
    allow_commands: Annotated[bool, "run shell commands from jobs (type command)"] = False
    pass_environment: Annotated[
        tuple[Filled, ...], "variables with secrets, such as REDIS_PASSWORD, to pass on to handlers and commands"
    ] = ()
    backoff: Annotated[
        BackoffSettings,
        "delays between attempts; or a list of delays, [1s, 10s, 1m], used exactly; the last one repeats",
    ] = BackoffSettings()
    priorities: Annotated[tuple[Priority, ...], AtLeastOne, "queue names, most urgent first"] = ("high", "low")
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
    brpoplpush_timeout: Annotated[Seconds, "maximum wait of one blocking call; longer in a fleet of over 100"] = 1.0
    path_map: Annotated[
        Mapping[Filled, Filled], "producer's path prefix: this worker's path prefix; the longest match is used"
    ] = field(default_factory=dict)
    allowed_roots: Annotated[
        tuple[Filled, ...], "files outside these directories are refused; [] = scan_dir after path_map"
    ] = ()
    safe_open: Annotated[
        bool, "give handlers the checked file descriptor, /proc/self/fd/N, instead of the path; for untrusted inboxes"
    ] = False
    vanished: Annotated[
        Literal["dead", "skip"], "a job whose file no longer exists: dead, or skip (completed without running)"
    ] = "dead"
    after: Annotated[AfterSettings, "what happens to the file when its job has ended"] = AfterSettings()


class ProducerSettings(Section, frozen=True):
    scan_dir: Annotated[Directory, "the directory to watch"] = "./data"
    include_globs: Annotated[
        tuple[Glob, ...], AtLeastOne, "files to enqueue; *.pdf: top level only, **/*.pdf: any depth; case-sensitive"
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
        'e.g. ".done": a file is enqueued once its marker exists; the marker is then removed',
    ] = ""
    identity: Annotated[
        Literal["stat", "inode", "content"],
        "what makes a file a new version: stat = new size or mtime; inode = new inode too; content = new content",
    ] = "inode"
    follow_symlinks: Annotated[bool, "follow symbolic links that stay within scan_dir"] = False
    max_pending: Annotated[CountOrZero, "pause while this many jobs are pending; 0 = never"] = 0
    imports: Annotated[
        tuple[Module, ...], "Python modules that a producer and a server import (those with @fileq.before_enqueue)"
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
        yield from self.exactly_one("match", "type")
        yield from self.exactly_one("use", "command")
        if self.command is not None and not (self.command and self.command[0]):
            yield "command", "is empty; give the program and its arguments"
        if is_own_type(self.type):
            yield "type", f"is {self.type!r}; types that begin with 'fileq.' are fileq's own"
        for name in ("on_completed", "on_dead"):
            if self.type is not None and getattr(self, name) == self.type:
                endless = "its jobs would follow each other endlessly"
                yield name, f"is {self.type!r}, the type of the route itself; {endless}"


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
        Mapping[Annotated[str, TextKind(NAME_RULE, f"a name that matches {NAME_RULE}")], ScheduleSettings],
        "recurring jobs, by name; the keys of each: " + ", ".join(ScheduleSettings.__struct_fields__),
    ] = field(default_factory=dict)
    circuit_breaker: Annotated[CircuitBreakerSettings, "one for each route; defers its jobs while many fail"] = (
        CircuitBreakerSettings()
    )
    webhooks: Annotated[WebhookSettings, "notify other programs about jobs, see docs/webhooks.md"] = WebhookSettings()
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


def priority_chooser(config: Config) -> Callable[[bytes], str]:
    """A function from the path of a file to its priority, which is also the name of its queue."""
    high_exts = tuple(ext.casefold() for ext in config.producer.high_priority_exts)
    high, other = config.high_priority, config.producer.default_priority
    return lambda path: high if path.decode(errors="replace").casefold().endswith(high_exts) else other
