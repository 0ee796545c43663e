"""Layers, precedence and errors: what somebody wrote, where, and what comes of it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fileq.config import Config, Loaded, Origin, config_from, describe_broker_choice, load
from fileq.config.sources import variable_names
from fileq.core.errors import ConfigError

Loading = Callable[..., Loaded]

PEOPLE_ALREADY_HAVE = """
redis:
  addr: "localhost:6379"
  username: ""
  password: ""
  db: 0
  pool_size_multiplier: 10
  min_idle_conns: 5
  dial_timeout: 5s
  read_timeout: 3s
  write_timeout: 3s
  max_retries: 3
worker:
  count: 16
  heartbeat_ttl: 30s
  max_retries: 3
  backoff:
    base: 500ms
    max: 10s
  priorities: ["high", "low"]
  queues:
    high: "jobqueue:high_priority"
    low: "jobqueue:low_priority"
  processing_list_pattern: "jobqueue:worker:%s:processing"
  heartbeat_key_pattern: "jobqueue:processing:worker:%s"
  completed_list: "jobqueue:completed"
  dead_letter_list: "jobqueue:dead_letter"
  brpoplpush_timeout: 1s
producer:
  scan_dir: "./data"
  include_globs: ["**/*"]
  exclude_globs: ["**/*.tmp", "**/.DS_Store"]
  default_priority: "low"
  high_priority_exts: [".pdf", ".docx", ".xlsx", ".zip"]
  rate_limit_per_sec: 100
  rate_limit_key: "jobqueue:rate_limit:producer"
circuit_breaker:
  failure_threshold: 0.5
  window: 1m
  cooldown_period: 30s
  min_samples: 20
observability:
  metrics_port: 9090
  log_level: "info"
  tracing:
    enabled: false
    endpoint: ""
"""


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    """load() with config.yaml of the given text in the working directory, and an environment of our own."""

    def run(text: str | None = None, environ: Mapping[str, str] | None = None, *sets: str) -> Loaded:
        if text is not None:
            (tmp_path / "config.yaml").write_text(text)
        return load(sets=sets, environ=environ or {}, cwd=tmp_path)

    return run


def problems(loading: Loading, *arguments: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        loading(*arguments)
    return caught.value.problems


# Layers


def test_with_nothing_set_everything_is_its_default(loading: Loading) -> None:
    loaded = loading()
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {Origin("default")}
    assert loaded.path is None


@pytest.mark.parametrize("text", ["", "# only a comment\n", "worker:\nredis:\n  tls:\nhandlers: ~\n"])
def test_an_empty_file_and_empty_sections_are_defaults(loading: Loading, text: str) -> None:
    loaded = loading(text)
    assert loaded.config == Config()
    assert loaded.path == "config.yaml"


def test_each_layer_beats_the_one_below(loading: Loading) -> None:
    text, plain, prefixed = "worker: {count: 2}", {"WORKER_COUNT": "3"}, {"FILEQ_WORKER_COUNT": "4"}
    assert loading().config.worker.count == 16
    assert loading(text).config.worker.count == 2
    assert loading(text, plain).config.worker.count == 3
    assert loading(text, plain | prefixed).config.worker.count == 4
    assert loading(text, plain | prefixed, "worker.count=5").config.worker.count == 5
    assert loading(text, plain, "worker.count=5", "worker.count=6").config.worker.count == 6


def test_each_value_knows_where_it_came_from(loading: Loading) -> None:
    loaded = loading(
        "worker:\n  count: 2\n  timeout: 1m\n", {"WORKER_TIMEOUT": "2m", "FILEQ_BROKER": "memory"}, "redis.db=1"
    )
    assert loaded.origins["worker.count"] == Origin("file", "config.yaml:2")
    assert loaded.origins["worker.timeout"] == Origin("env", "WORKER_TIMEOUT")
    assert loaded.origins["broker"] == Origin("env", "FILEQ_BROKER")
    assert loaded.origins["redis.db"] == Origin("--set")
    assert loaded.origins["worker.isolation"] == Origin("default")
    assert loaded.is_set("redis.db")
    assert not loaded.is_set("handlers")


def test_the_environment_is_that_of_the_process_unless_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILEQ_WORKER_COUNT", "7")
    assert load(cwd=tmp_path).config.worker.count == 7
    assert load(environ={}, cwd=tmp_path).config.worker.count == 16


def test_an_empty_variable_is_unset(loading: Loading) -> None:
    assert loading("worker: {count: 2}", {"WORKER_COUNT": "", "FILEQ_WORKER_COUNT": ""}).config.worker.count == 2


def test_every_setting_has_a_variable_of_its_own() -> None:
    names = variable_names(["high", "low"])
    assert len(set(names.values())) == len(names)
    assert names["OBSERVABILITY_TRACING_ENABLED"] == "observability.tracing.enabled"
    assert names["WORKER_BACKOFF_BASE"] == "worker.backoff.base"


@pytest.mark.parametrize("name", ["BROKER", "IMPORTS", "HANDLERS"])
def test_top_level_names_are_taken_only_with_the_prefix(loading: Loading, name: str) -> None:
    assert loading(None, {name: "nonsense;"}).config == Config()
    assert problems(loading, None, {f"FILEQ_{name}": "nonsense;"})[0].startswith(f"FILEQ_{name}")


def test_unknown_prefixed_names_are_listed_and_never_an_error(loading: Loading) -> None:
    environ = {
        "FILEQ_PORT": "tcp://10.0.0.1:80",
        "FILEQ_WORKER_CUONT": "3",
        "FILEQ_WORKER_QUEUES_URGENT": "x",
        "FILEQ_CONFIG": "",
        "FILEQ_JOB_ID": "1",
        "FILEQ_WORKER_COUNT": "3",
        "WORKER_SERVICE_HOST": "x",
    }
    assert loading(None, environ).unknown_env == ("FILEQ_PORT", "FILEQ_WORKER_CUONT", "FILEQ_WORKER_QUEUES_URGENT")


def test_a_text_from_the_environment_stays_text(loading: Loading) -> None:
    redis = loading(None, {"REDIS_PASSWORD": "12345", "REDIS_USERNAME": "~", "REDIS_DB": "3"}).config.redis
    assert (redis.password, redis.username, redis.db) == ("12345", "~", 3)


def test_a_text_in_the_file_is_what_is_written_there(loading: Loading) -> None:
    loaded = loading("redis: {password: 0123, username: yes}\nproducer: {watch: off}\n")
    assert (loaded.config.redis.password, loaded.config.redis.username) == ("0123", "yes")
    assert loaded.config.producer.watch == "off"


def test_lists_in_the_environment_are_comma_separated_or_yaml(loading: Loading) -> None:
    def globs(text: str) -> tuple[str, ...]:
        return loading(None, {"PRODUCER_INCLUDE_GLOBS": text}).config.producer.include_globs

    assert globs("**/*.pdf, **/*.txt,") == ("**/*.pdf", "**/*.txt")
    assert globs("{a,b}/*.{pdf,txt},c") == ("{a,b}/*.{pdf,txt}", "c")
    assert globs('["**/*.{pdf,txt}", b]') == ("**/*.{pdf,txt}", "b")
    assert loading(None, {"PRODUCER_EXCLUDE_GLOBS": "[]"}).config.producer.exclude_globs == ()


def test_maps_in_the_environment_are_pairs_or_yaml(loading: Loading) -> None:
    def path_map(text: str) -> Mapping[str, str]:
        return loading(None, {"WORKER_PATH_MAP": text}).config.worker.path_map

    assert path_map("/in=/mnt/in, /out=/mnt/out") == {"/in": "/mnt/in", "/out": "/mnt/out"}
    assert path_map("{/a=b: /c}") == {"/a=b": "/c"}
    assert loading(None, {}, "worker.path_map./data.v1=/mnt").config.worker.path_map == {"/data.v1": "/mnt"}


def test_handlers_can_come_from_the_environment(loading: Loading) -> None:
    loaded = loading(None, {"FILEQ_HANDLERS": '[{match: "**/*.pdf", use: "a.b:c"}]'})
    assert [route.use for route in loaded.config.handlers] == ["a.b:c"]
    assert loaded.is_set("handlers")


def test_unset_is_spelled_the_same_everywhere(loading: Loading) -> None:
    text = "producer: {rate_limit_per_sec: 5}"
    assert loading(text).config.producer.rate_limit_per_sec == 5
    assert loading(text, {"PRODUCER_RATE_LIMIT_PER_SEC": "~"}).config.producer.rate_limit_per_sec is None
    assert loading(text, {}, "producer.rate_limit_per_sec=0").config.producer.rate_limit_per_sec == 0


def test_max_memory_is_bytes_or_none(loading: Loading) -> None:
    assert loading("worker: {max_memory: 512MB}").config.worker.max_memory == 512 << 20
    assert loading("worker: {max_memory: ''}").config.worker.max_memory is None


# The file


def test_a_configuration_people_already_have_means_redis_and_loads_unchanged(loading: Loading) -> None:
    config = loading(PEOPLE_ALREADY_HAVE).config
    assert config.broker_kind == "redis"
    assert config.redis.host_and_port == ("localhost", 6379)
    assert config.worker == Config().worker
    assert config.producer.rate_limit_per_sec == 100
    assert config.observability == Config().observability


def test_the_named_file_goes_before_the_variable_and_that_before_config_yaml(tmp_path: Path) -> None:
    for name, count in (("config.yaml", 1), ("b.yaml", 2), ("c.yaml", 3)):
        (tmp_path / name).write_text(f"worker: {{count: {count}}}")
    environ = {"FILEQ_CONFIG": "b.yaml"}
    assert load(environ={}, cwd=tmp_path).config.worker.count == 1
    assert load(environ=environ, cwd=tmp_path).config.worker.count == 2
    loaded = load("c.yaml", environ=environ, cwd=tmp_path)
    assert (loaded.config.worker.count, loaded.path) == (3, "c.yaml")


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config names 'no\.yaml', which does not exist"):
        load("no.yaml", environ={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"FILEQ_CONFIG names 'no\.yaml', which does not exist"):
        load(environ={"FILEQ_CONFIG": "no.yaml"}, cwd=tmp_path)


def test_a_directory_in_place_of_the_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^\. cannot be read: Is a directory$"):
        load(".", environ={}, cwd=tmp_path)


# Errors


def test_all_wrong_keys_and_values_are_reported_at_once(loading: Loading) -> None:
    text = "worker:\n  cuont: 3\nredis:\n  adr: localhost:6379\n"
    assert sorted(problems(loading, text, {"WORKER_COUNT": "abc"})) == [
        "WORKER_COUNT is 'abc'; worker.count must be a whole number of at least 1",
        "config.yaml:2: unknown key 'worker.cuont'; did you mean 'worker.count'?",
        "config.yaml:4: unknown key 'redis.adr'; did you mean 'redis.addr'?",
    ]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("worker.scan_dir", "producer.scan_dir"),
        ("worker.rescan_interval", "producer.rescan_interval"),
        ("producer.scanDir", "producer.scan_dir"),
        ("observability.enabled", "observability.tracing.enabled"),
        ("redis.pass", "redis.password"),
        ("workers", "worker"),
        ("worker.backof.base", "worker.backoff"),
    ],
)
def test_the_nearest_known_key_is_named(loading: Loading, path: str, meant: str) -> None:
    text = "".join(f"{{{part}: " for part in path.split(".")) + "1" + "}" * len(path.split("."))
    (line,) = problems(loading, text)
    assert line.endswith(f"; did you mean {meant!r}?")


def test_a_key_that_resembles_nothing_is_answered_with_those_there_are(loading: Loading) -> None:
    assert problems(loading, "sqlite: {zzz: 1}") == ("config.yaml:1: unknown key 'sqlite.zzz'; known here: path",)


def test_a_dotted_key_in_the_file_is_told_to_be_nested(loading: Loading) -> None:
    (line,) = problems(loading, "worker.count: 3")
    assert "write it nested: worker: {count: …" in line


def test_a_wrong_value_that_is_overridden_does_no_harm(loading: Loading) -> None:
    assert loading("worker: {count: abc}", {"WORKER_COUNT": "abc", "FILEQ_WORKER_COUNT": "3"}).config.worker.count == 3


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("worker.count=0", "--set: worker.count is '0'; it must be a whole number of at least 1"),
        ("worker.count", "--set needs key=value, such as worker.count=8; after 'worker.count' comes no ="),
        ("worker.cuont=1", "--set: unknown key 'worker.cuont'; did you mean 'worker.count'?"),
        ("wroker.cuont=1", "--set: unknown key 'wroker.cuont'; did you mean 'worker.count'?"),
        ("zzz.count.a=1", "--set: unknown key 'zzz.count.a'; known here: " + ", ".join(Config.__struct_fields__)),
        ("worker=1", "--set: worker is a text; it must be a section of keys"),
        ("worker.path_map=a", "--set: worker.path_map is 'a'; it must be a mapping such as {a: b}"),
        ("handlers=a", "--set: handlers is 'a'; it must be a list, such as [a, b]"),
    ],
)
def test_a_wrong_set_is_one_line(loading: Loading, setting: str, line: str) -> None:
    assert problems(loading, None, {}, setting) == (line,)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("worker.heartbeat_ttl=2s", "a duration of at least 3s"),
        ("worker.timeout=30", "a duration with its unit, such as 30s or 30ms"),
        ("worker.timeout=0", "a duration such as 500ms, 30s or 1h30m, above 0"),
        ("worker.reap_interval=0s", "above 0"),
        ("worker.brpoplpush_timeout=0", "above 0"),
        ("worker.max_retries=-1", "a whole number of at least 0"),
        ("worker.completed_max=1" + "0" * 30, "a whole number of at most"),
        ("worker.isolation=fork", "process or thread"),
        ("worker.backoff.strategy=random", "exponential, linear, fixed or power"),
        ("worker.backoff.jitter=1.5", "a number from 0 to 1"),
        ("worker.backoff.jitter=nan", "a number from 0 to 1"),
        ("worker.starvation_share=1", "a number from 0 to below 1"),
        ("worker.max_memory=512", "a size with its unit, such as 512MB"),
        ("worker.max_memory=0B", "a size such as 512MB"),
        ("worker.allow_commands=maybe", "true or false"),
        ("worker.after.dead=burn", "keep, delete or move:DIR"),
        ("worker.after.completed=move:", "keep, delete or move:DIR"),
        ("worker.priorities=[]", "a list of at least one item"),
        ('worker.priorities=["", low]', "a name of letters, digits, _ and -"),
        ("worker.priorities=a b", "a name of letters, digits, _ and -"),
        ("worker.priorities=completed", "a name of letters, digits, _ and -, other than"),
        ("worker.processing_list_pattern=x", "a key name with exactly one %s"),
        ("worker.heartbeat_key_pattern=%s:%s", "a key name with exactly one %s"),
        ("worker.completed_list=", "a key name"),
        ("redis.prefix=", "a key name"),
        ("redis.addr=localhost", "host:port"),
        ("redis.addr=localhost:70000", "host:port"),
        ("redis.addr=localhost:0", "host:port"),
        ("redis.addr=::1:6379", "host:port"),
        ("redis.url=http://localhost", "a URL such as redis://localhost:6379/0"),
        ("redis.url=redis://localhost:abc", "percent-encode"),
        ("redis.url=redis+sentinel://h1,h2", "a URL such as"),
        ("redis.url=unix://", "a URL such as"),
        ("producer.watch=sometimes", "auto, events, poll or off"),
        ("producer.scan_dir=", "text that is not empty"),
        ("producer.include_globs=[]", "a list of at least one item"),
        ("producer.high_priority_exts=pdf", "an extension such as .pdf"),
        ("producer.rate_limit_per_sec=-1", "a whole number of at least 0, or ~ for none"),
        ("circuit_breaker.failure_threshold=0", "a number above 0 to 1"),
        ("circuit_breaker.failure_threshold=x", "a number above 0 to 1"),
        ("circuit_breaker.min_samples=0", "a whole number of at least 1"),
        ("observability.metrics_port=65536", "a whole number from 0 to 65535"),
        ("observability.log_level=loud", "debug, info, warn or error"),
        ("observability.tracing.endpoint=localhost:4318", "a URL such as http://localhost:4318"),
        ("imports=a-b", "a module such as package.module"),
        ("broker=reddis", "redis, sqlite or memory"),
    ],
)
def test_a_value_out_of_range_is_told_what_it_must_be(loading: Loading, setting: str, expected: str) -> None:
    (line,) = problems(loading, None, {}, setting)
    assert line.startswith(f"--set: {setting.partition('=')[0]}")
    assert expected in line


@pytest.mark.parametrize(
    "setting",
    [
        "redis.addr=[::1]:6379",
        "redis.url=redis://user:p%40ss@localhost:6379/0?x=y",
        "redis.url=rediss://[::1]",
        "redis.url=unix:///run/redis.sock",
        "redis.url=redis+sentinel://h1,h2:26379/master/0",
        "redis.url=redis+cluster://h1:7000,h2:7001",
        "observability.tracing.endpoint=grpc://localhost:4317",
        "observability.log_level=WARN",
        "observability.metrics_port=0",
        "worker.starvation_share=0",
        "worker.after.completed=move:/done",
        "worker.allow_commands=on",
        "worker.shutdown_timeout=0",
    ],
)
def test_values_at_the_edge_are_taken(loading: Loading, setting: str) -> None:
    assert loading(None, {}, setting).is_set(setting.partition("=")[0])


def test_a_value_of_the_wrong_shape_is_named_by_its_shape(loading: Loading) -> None:
    text = (
        "worker: {count: [1], path_map: [a]}\nredis: redis://:hunter2@h\nproducer: {include_globs: '*', scan_dir: {}}"
    )
    assert problems(loading, text) == (
        "config.yaml:2: redis is a text; it must be a section of keys",
        "config.yaml:1: worker.count is a list; it must be a whole number of at least 1",
        "config.yaml:1: worker.path_map is a list; it must be a mapping such as {a: b}",
        "config.yaml:3: producer.scan_dir is a mapping; it must be text that is not empty",
        "config.yaml:3: producer.include_globs is '*'; it must be a list of at least one item, such as [a, b]",
    )


def test_a_variable_that_is_not_yaml_is_one_line_with_its_name(loading: Loading) -> None:
    (line,) = problems(loading, None, {"WORKER_PRIORITIES": "[a"})
    assert line.startswith("WORKER_PRIORITIES: not valid YAML: ")


def test_an_error_stays_on_one_line_of_reasonable_length(loading: Loading) -> None:
    (line,) = problems(loading, None, {"WORKER_COUNT": "a\nb" + "x" * 1000})
    assert "\n" not in line
    assert len(line) < 200


# Broker


@pytest.mark.parametrize(
    ("settings", "kind", "choice"),
    [
        ([], "sqlite", "sqlite, ./fileq.db (neither broker, redis.addr nor redis.url is set)"),
        (["redis.addr=h:1"], "redis", "redis, h:1 (redis.addr from --set)"),
        (["redis.url=redis://:pw@h:1/0"], "redis", "redis, redis://***@h:1/0 (redis.url from --set)"),
        (["redis.addr=h:1", "redis.url=redis://g"], "redis", "redis, redis://g (redis.url from --set)"),
        (["redis.addr=h:1", "broker=sqlite"], "sqlite", "sqlite, ./fileq.db (broker from --set)"),
        (["broker=redis"], "redis", "redis, localhost:6379 (broker from --set)"),
        (["broker=memory"], "memory", "memory, this process only (broker from --set)"),
    ],
)
def test_the_broker_follows_from_the_settings_and_says_which(
    loading: Loading, settings: list[str], kind: str, choice: str
) -> None:
    loaded = loading(None, {}, *settings)
    assert loaded.config.broker_kind == kind
    assert describe_broker_choice(loaded) == choice


def test_the_choice_names_the_line_of_the_file(loading: Loading) -> None:
    loaded = loading(PEOPLE_ALREADY_HAVE)
    assert describe_broker_choice(loaded) == "redis, localhost:6379 (redis.addr from config.yaml:3)"


def test_a_broker_of_an_installed_package_is_taken_by_name(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.config.kinds.installed_brokers", lambda: ("postgres",))
    loaded = loading(None, {}, "broker=postgres")
    assert loaded.config.broker_kind == "postgres"
    assert describe_broker_choice(loaded) == "postgres (broker from --set)"
    assert problems(loading, None, {}, "broker=mysql")[0].endswith("it must be redis, sqlite, memory or postgres")


@pytest.mark.parametrize(
    ("addr", "host_and_port"), [("", ("localhost", 6379)), ("h:1", ("h", 1)), ("[::1]:6380", ("::1", 6380))]
)
def test_an_address_is_a_host_and_a_port(addr: str, host_and_port: tuple[str, int]) -> None:
    assert config_from({"redis": {"addr": addr}}).redis.host_and_port == host_and_port


# Files that settings name


def test_the_password_file_is_read_without_its_last_newline(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    loaded = loading("redis: {password_file: secret}")
    assert loaded.config.redis.password == "hunter2"
    assert loaded.origins["redis.password"] == Origin("file", "config.yaml:1")
    assert loading("", {"REDIS_PASSWORD": "x"}).origins["redis.password"] == Origin("env", "REDIS_PASSWORD")


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\n", "is empty"), (b"\xff", "not a text")])
def test_a_password_file_that_gives_no_password_is_named(
    loading: Loading, tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    (line,) = problems(loading, "redis: {password_file: secret}")
    assert line.startswith("config.yaml:1: redis.password_file 'secret'")
    assert why in line


def test_password_and_password_file_exclude_each_other(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    assert problems(loading, "redis: {password_file: secret}", {"REDIS_PASSWORD": "hunter3"}) == (
        "redis.password and redis.password_file are both set (REDIS_PASSWORD, config.yaml:1); keep one",
    )


def test_tls_files_must_be_there_and_a_key_needs_its_certificate(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    assert problems(loading, "redis: {tls: {ca_file: no.pem, key_file: key.pem}}") == (
        "config.yaml:1: redis.tls.ca_file is 'no.pem'; it must be a file that is there and can be read",
        "config.yaml:1: redis.tls.key_file is 'key.pem'; it must be given together with redis.tls.cert_file",
    )


# In code


def test_config_from_takes_plain_values() -> None:
    config = config_from({"worker": {"count": 2, "timeout": "5s", "allow_commands": True, "backoff": {"jitter": 0}}})
    assert (config.worker.count, config.worker.timeout, config.worker.allow_commands) == (2, 5.0, True)
    assert config.worker.backoff.jitter == 0.0
    assert config_from({}) == Config()


def test_config_from_refuses_like_a_file() -> None:
    with pytest.raises(ConfigError, match=r"^the given values: worker\.count is '0'"):
        config_from({"worker": {"count": 0}})


def test_a_configuration_can_be_sent_to_another_process() -> None:
    config = config_from({"worker": {"path_map": {"/a": "/b"}}, "redis": {"password": "x"}})
    assert pickle.loads(pickle.dumps(config)) == config


def test_importing_the_configuration_loads_nothing_heavy() -> None:
    heavy = {"redis", "opentelemetry", "rich", "starlette", "uvicorn", "yaml", "structlog", "importlib.metadata"}
    program = (
        f"import sys, fileq.config; fileq.config.load(environ={{}}, cwd='/'); print({heavy!r} & sys.modules.keys())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
