"""Every key of the configuration: its type, its limits, its default and its meaning.

Durations are seconds, sizes are bytes, lists are tuples. `Config()` is the configuration of somebody who set
nothing. Nothing is read from anywhere here; load.py does that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from msgspec import field

from fileq.config.kinds import (
    Address,
    BrokerName,
    Duration,
    ExitOrException,
    Maybe,
    Name,
    NamePattern,
    Secret,
    Share,
    Size,
    Text,
    Url,
    Whole,
    mask_credentials,
    split_address,
)
from fileq.config.section import AtLeastOne, Key, Section, walk
from fileq.config.units import format_duration
from fileq.files.paths import Paths

Seconds: TypeAlias = Annotated[float, Duration()]
SecondsOrZero: TypeAlias = Annotated[float, Duration(zero=True)]
Count: TypeAlias = Annotated[int, Whole(at_least=1)]
CountOrZero: TypeAlias = Annotated[int, Whole()]
Port: TypeAlias = Annotated[int, Whole(at_most=65535)]
Filled: TypeAlias = Annotated[str, Text(r"(?s).+", "text that is not empty")]
Glob: TypeAlias = Annotated[str, Text(r"(?s).+", "a glob such as **/*.pdf")]
Extension: TypeAlias = Annotated[str, Text(r"\.[^/]+", "an extension such as .pdf")]
Module: TypeAlias = Annotated[str, Text(r"[A-Za-z_]\w*(\.\w+)*", "a module such as package.module")]
Function: TypeAlias = Annotated[str, Text(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "package.module:function")]
After: TypeAlias = Annotated[str, Text(r"(?s)keep|delete|move:.+", "keep, delete or move:DIR")]
Isolation: TypeAlias = Literal["process", "thread"]
Priority: TypeAlias = Annotated[
    str,
    Text(
        r"(?!(scheduled|dead_letter|processing|completed|cancelled)\Z)[A-Za-z0-9_-]+",
        "a name of letters, digits, _ and -, other than scheduled, dead_letter, processing, completed, cancelled",
    ),
]
RedisUrl = Url(("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"), "redis://localhost:6379/0")
OtlpUrl = Url(("http", "https", "grpc"), "http://localhost:4318")

DEFAULT_PREFIX = "jobqueue"
DEFAULT_ADDRESS = "localhost:6379"


class Sqlite(Section, frozen=True):
    path: Annotated[Filled, "the database file; a network file system is refused"] = "./fileq.db"


class Tls(Section, frozen=True):
    enabled: Annotated[bool, "encrypt the connection"] = False
    ca_file: Annotated[str, 'certificates to trust; "" = those of the system'] = ""
    cert_file: Annotated[str, "certificate to show to the server"] = ""
    key_file: Annotated[str, "its private key"] = ""


class Redis(Section, frozen=True):
    addr: Annotated[str, Address(), "host:port; with broker: redis and no addr or url, localhost:6379"] = ""
    url: Annotated[
        str,
        RedisUrl,
        "redis:// rediss:// unix:// redis+sentinel://h1,h2/master/0 redis+cluster://h1,h2; beats addr; "
        "the credentials below beat its own",
    ] = ""
    username: Annotated[str, "user of Redis's access control lists"] = ""
    password: Annotated[str, Secret(), "better kept in password_file or the environment"] = ""
    password_file: Annotated[str, "file that holds the password, instead of password"] = ""
    db: Annotated[CountOrZero, "number of the database"] = 0
    prefix: Annotated[str, Name(), "how every name begins that has no setting of its own"] = DEFAULT_PREFIX
    tls: Annotated[Tls, "encryption; also on with rediss://"] = Tls()
    pool_size_multiplier: Annotated[Count, "most connections = this × CPUs"] = 10
    min_idle_conns: Annotated[CountOrZero, "connections opened at start"] = 5
    dial_timeout: Annotated[Seconds, "longest wait for a connection"] = 5.0
    read_timeout: Annotated[Seconds, "longest wait for a reply"] = 3.0
    write_timeout: Annotated[Seconds, "longest wait for a request to leave"] = 3.0
    max_retries: Annotated[CountOrZero, "repetitions of calls that can be repeated safely"] = 3

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where `addr` points, or would by default; `url` goes before it."""
        return split_address(self.addr or DEFAULT_ADDRESS) or ("localhost", 6379)

    @property
    def location(self) -> str:
        """Where Redis is, fit for logs."""
        return mask_credentials(self.url or self.addr or DEFAULT_ADDRESS)


class Backoff(Section, frozen=True):
    """How long to wait before the next attempt. `delays`, given as a plain list, stand in for the formula."""

    list_field: ClassVar[str] = "delays"

    strategy: Annotated[
        Literal["exponential", "linear", "fixed", "power"],
        "after n failures: exponential base·2^(n-1), linear base·n, fixed base, power (base in seconds)^n",
    ] = "exponential"
    base: Annotated[SecondsOrZero, "what the strategy starts from; above 1s for power"] = 0.5
    max: Annotated[SecondsOrZero, "no delay is longer"] = 10.0
    jitter: Annotated[float, Share(), "each delay is multiplied by 1 ± up to this"] = 0.2
    delays: Annotated[tuple[SecondsOrZero, ...], AtLeastOne] = ()

    @classmethod
    def from_list(cls, items: tuple[float, ...]) -> Self:
        """Delays spelled out are meant as they are: neither spread nor capped."""
        return cls(delays=items, jitter=0.0, max=max(items))

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.strategy == "power" and self.base <= 1:
            yield "base", f"is {format_duration(self.base)}; with strategy power it must be above 1s"


class AfterEnd(Section, frozen=True):
    completed: Annotated[After, "the file of a completed job: keep, delete or move:DIR"] = "keep"
    dead: Annotated[After, "the file of a dead job: keep, delete or move:DIR"] = "keep"


class Worker(Section, frozen=True):
    count: Annotated[Count, "slots: jobs that run at the same time"] = 16
    isolation: Annotated[
        Isolation, "process: one child a slot (crashes contained, hard timeouts, all cores); thread"
    ] = "process"
    heartbeat_ttl: Annotated[float, Duration(at_least=3.0), "a silent slot loses its job after this; 3s or more"] = 30.0
    reap_interval: Annotated[Seconds, "how often jobs of dead workers are looked for"] = 5.0
    max_retries: Annotated[CountOrZero, "retries of a failed job, so at most one run more"] = 3
    max_recoveries: Annotated[CountOrZero, "deaths of its worker before a job is dead"] = 3
    timeout: Annotated[Seconds, "longest run of one attempt"] = 300.0
    shutdown_timeout: Annotated[SecondsOrZero, "how long running jobs may go on after a signal to stop"] = 30.0
    max_memory: Annotated[int | None, Size(), 'of one child with its descendants, e.g. 512MB; "" = no limit'] = None
    allow_commands: Annotated[bool, "run shell commands that jobs bring along"] = False
    backoff: Annotated[
        Backoff, "delays between attempts; or a list of them, [1s, 10s, 1m], taken as they are, the last reused"
    ] = Backoff()
    priorities: Annotated[tuple[Priority, ...], AtLeastOne, "the queues, most urgent first"] = ("high", "low")
    starvation_share: Annotated[
        float,
        Share(one=False),
        "every (1/share)th claim starts from a lower queue, these in turn; 0 = strict priority",
    ] = 0.05
    queues: Annotated[
        Mapping[Priority, Annotated[str, Name()]], "name of each priority's list; else <redis.prefix>:<name>_priority"
    ] = field(default_factory=lambda: {name: f"{DEFAULT_PREFIX}:{name}_priority" for name in ("high", "low")})
    processing_list_pattern: Annotated[str, NamePattern(), "list of the job a slot holds; %s = the slot's ID"] = (
        f"{DEFAULT_PREFIX}:worker:%s:processing"
    )
    heartbeat_key_pattern: Annotated[str, NamePattern(), "heartbeat of a slot; %s = the slot's ID"] = (
        f"{DEFAULT_PREFIX}:processing:worker:%s"
    )
    completed_list: Annotated[str, Name(), "list of completed jobs"] = f"{DEFAULT_PREFIX}:completed"
    dead_letter_list: Annotated[str, Name(), "list of dead jobs"] = f"{DEFAULT_PREFIX}:dead_letter"
    completed_max: Annotated[Count, "completed jobs kept; older ones go with their records"] = 10_000
    history_ttl: Annotated[Seconds, "how long the record of an ended job is kept"] = 86_400.0
    brpoplpush_timeout: Annotated[Seconds, "longest wait of one blocking call"] = 1.0
    path_map: Annotated[Mapping[Filled, Filled], "producer's prefix: this worker's prefix, longest first"] = field(
        default_factory=dict
    )
    allowed_roots: Annotated[tuple[Filled, ...], "files outside are refused; [] = the mapped scan_dir"] = ()
    after: Annotated[AfterEnd, "what becomes of the file once its job has ended"] = AfterEnd()

    def processing_list(self, slot: str) -> str:
        return self.processing_list_pattern.replace("%s", slot)

    def heartbeat_key(self, slot: str) -> str:
        return self.heartbeat_key_pattern.replace("%s", slot)


class Producer(Section, frozen=True):
    scan_dir: Annotated[Filled, "the directory to watch"] = "./data"
    include_globs: Annotated[tuple[Glob, ...], AtLeastOne, "files to take; **/ is any depth, also none"] = ("**/*",)
    exclude_globs: Annotated[tuple[Glob, ...], "files to leave out of these"] = ("**/*.tmp", "**/.DS_Store")
    default_priority: Annotated[str, "one of worker.priorities; where low is none, the last"] = "low"
    high_priority_exts: Annotated[tuple[Extension, ...], "extensions that go to the high queue, in any case"] = (
        ".pdf",
        ".docx",
        ".xlsx",
        ".zip",
    )
    rate_limit_per_sec: Annotated[
        int | None, Maybe(Whole()), "new files a second; ~ = 100 on redis, none on sqlite and memory; 0 = none"
    ] = None
    rate_limit_key: Annotated[str, Name(), "the counter that producers share"] = f"{DEFAULT_PREFIX}:rate_limit:producer"
    watch: Annotated[
        Literal["auto", "events", "poll", "off"], "auto, events, poll or off; auto polls where events don't arrive"
    ] = "auto"
    poll_interval: Annotated[Seconds, "where polling; stretched to twice the last scan"] = 1.0
    rescan_interval: Annotated[Seconds, "full scan for whatever events missed"] = 60.0
    settle: Annotated[SecondsOrZero, "stillness of a file after a close or move-in event"] = 0.5
    settle_unclosed: Annotated[SecondsOrZero, "stillness of a file without one (a scan, polling)"] = 5.0
    ready_suffix: Annotated[
        str, Text(r"[^/]*", "a suffix such as .done"), 'e.g. ".done": a file counts once its marker file exists'
    ] = ""
    follow_symlinks: Annotated[bool, "follow links that stay within scan_dir"] = False
    max_pending: Annotated[CountOrZero, "pause while this many jobs wait; 0 = never"] = 0


class Route(Section, frozen=True):
    """Which handler gets which jobs. What is None here is as the worker has it."""

    is_sparse: ClassVar[bool] = True

    match: Annotated[Glob | None, "glob of the files"] = None
    type: Annotated[Filled | None, "type of the jobs"] = None
    use: Annotated[Function | None, "package.module:function"] = None
    command: Annotated[tuple[str, ...] | None, "argument list"] = None
    timeout: Annotated[Seconds | None, "like worker.timeout"] = None
    max_retries: Annotated[CountOrZero | None, "like worker.max_retries"] = None
    backoff: Annotated[Backoff | None, "like worker.backoff; unset keys are the worker's"] = None
    isolation: Annotated[Isolation | None, "like worker.isolation"] = None
    in_place: Annotated[bool, "the handler may change its file"] = False
    give_up_on: Annotated[tuple[Annotated[int | str, ExitOrException()], ...], "endings not worth a retry"] = ()

    def faults(self) -> Iterator[tuple[str, str]]:
        for one, other in (("match", "type"), ("use", "command")):
            given = [name for name in (one, other) if getattr(self, name) is not None]
            if not given:
                yield "", f"has neither {one} nor {other}; give one of them"
            elif len(given) == 2:
                yield "", f"has both {one} and {other}; keep one of them"
        if self.command is not None and not (self.command and self.command[0]):
            yield "command", "is empty; give the program and its arguments"


class CircuitBreaker(Section, frozen=True):
    failure_threshold: Annotated[float, Share(zero=False), "share of failures that opens it"] = 0.5
    window: Annotated[Seconds, "over which failures are counted"] = 60.0
    cooldown_period: Annotated[Seconds, "without claims before one job is tried"] = 30.0
    min_samples: Annotated[Count, "with fewer it stays closed"] = 20


class Tracing(Section, frozen=True):
    enabled: Annotated[bool, "send spans"] = False
    endpoint: Annotated[str, OtlpUrl, "OTLP collector; http(s)://… or grpc://…"] = ""


class Observability(Section, frozen=True):
    metrics_port: Annotated[Port, "serves /metrics, /healthz, /readyz; 0 = any free one"] = 9090
    metrics_bind: Annotated[Filled, "address it is served on"] = "0.0.0.0"
    log_level: Annotated[Literal["debug", "info", "warn", "error"], "debug, info, warn or error"] = "info"
    log_format: Annotated[Literal["auto", "console", "json"], "auto: console on a terminal, else json"] = "auto"
    stats_retention: Annotated[Seconds, "how long hourly counters are kept"] = 30 * 86_400.0
    tracing: Annotated[Tracing, "OpenTelemetry"] = Tracing()


class Config(Section, frozen=True):
    """The whole configuration. load() makes one; nothing changes it afterwards."""

    broker: Annotated[
        str, BrokerName(), 'redis, sqlite, memory; "" = redis when redis.addr or redis.url is set, else sqlite'
    ] = ""
    sqlite: Annotated[Sqlite, "the embedded broker, for one machine"] = Sqlite()
    redis: Annotated[Redis, "the broker for many machines"] = Redis()
    worker: Annotated[Worker, "runs jobs"] = Worker()
    producer: Annotated[Producer, "finds files"] = Producer()
    imports: Annotated[tuple[Module, ...], "Python modules to load (those with @fileq.handler)"] = ()
    handlers: Annotated[tuple[Route, ...], "first match wins; these before decorated ones"] = (
        Route(match="**/*", use="fileq.handlers:checksum"),
    )
    circuit_breaker: Annotated[CircuitBreaker, "stops claiming while too much fails"] = CircuitBreaker()
    observability: Annotated[Observability, "metrics, logs, traces"] = Observability()

    @property
    def paths(self) -> Paths:
        """Maps the paths of producers to this machine and knows the allowed roots."""
        return Paths(self.producer.scan_dir, self.worker.path_map, self.worker.allowed_roots)

    @property
    def broker_kind(self) -> str:
        """The broker to open: the one that was named, else what the redis settings imply."""
        return self.broker or ("redis" if self.redis.url or self.redis.addr else "sqlite")

    @property
    def broker_location(self) -> str:
        """Where that broker is, fit for logs; empty for one that fileq does not know."""
        known = {"redis": self.redis.location, "sqlite": self.sqlite.path, "memory": "this process only"}
        return known.get(self.broker_kind, "")

    @property
    def high_priority(self) -> str:
        """Where `high_priority_exts` go: `high`, or the most urgent queue where none has that name."""
        priorities = self.worker.priorities
        return "high" if "high" in priorities else priorities[0]


@functools.cache
def every_key() -> Mapping[str, Key]:
    """Dotted path to key, sections before what they hold."""
    return dict(walk(Config))


def is_setting(key: Key) -> bool:
    """Whether it can be given by itself; of sections only those for which a list may stand."""
    return not isinstance(key.shape, type) or bool(key.shape.list_field)
