"""Every problem is reported at once, on one line each: origin, key, value and what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from fileq.config import Config
from fileq.config.section import keys_of
from tests.support.config_loading import ConfigDirectory


@pytest.fixture
def config_directory(tmp_path: Path) -> ConfigDirectory:
    return ConfigDirectory(tmp_path)


def test_all_wrong_keys_and_values_are_reported_at_once(config_directory: ConfigDirectory) -> None:
    text = "worker:\n  cuont: 3\nredis:\n  adr: localhost:6379\n"
    assert sorted(config_directory.problems(text, {"WORKER_COUNT": "abc"})) == [
        "WORKER_COUNT is 'abc'; worker.count must be a whole number from 1 to 1024",
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
        ("worker-count", "worker.count"),
        ("WORKER_COUNT", "worker.count"),
        ("backoff-base", "worker.backoff.base"),
        ("timeout", "worker.timeout"),
        ("path", "sqlite.path"),
        ("workers", "worker"),
        ("worker.backof.base", "worker.backoff"),
    ],
)
def test_the_most_similar_known_key_is_named(config_directory: ConfigDirectory, path: str, meant: str) -> None:
    text = "".join(f"{{{part}: " for part in path.split(".")) + "1" + "}" * len(path.split("."))
    (line,) = config_directory.problems(text)
    assert line.endswith(f"; did you mean {meant!r}?")


def test_a_key_that_several_sections_have_is_named_with_each(config_directory: ConfigDirectory) -> None:
    (line,) = config_directory.problems("max-retries: 3")
    assert line.endswith("unknown key 'max-retries'; did you mean 'redis.max_retries' or 'worker.max_retries'?")


def test_a_key_without_a_similar_one_lists_the_known_keys(config_directory: ConfigDirectory) -> None:
    assert config_directory.problems("sqlite: {zzz: 1}") == (
        "config.yaml:1: unknown key 'sqlite.zzz'; known here: path",
    )


def test_a_dotted_key_in_the_file_is_shown_nested(config_directory: ConfigDirectory) -> None:
    (line,) = config_directory.problems("worker.count: 3")
    assert "write it nested: worker: {count: …" in line


def test_an_invalid_value_that_is_overridden_is_no_problem(config_directory: ConfigDirectory) -> None:
    assert (
        config_directory.load(
            "worker: {count: abc}", {"WORKER_COUNT": "abc", "FILEQ_WORKER_COUNT": "3"}
        ).config.worker.count
        == 3
    )


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("worker.count=0", "--set: worker.count is '0'; it must be a whole number from 1 to 1024"),
        ("worker.count=1025", "--set: worker.count is '1025'; it must be a whole number from 1 to 1024"),
        ("worker.count", "--set needs key=value, such as worker.count=8; 'worker.count' has no ="),
        ("worker.cuont=1", "--set: unknown key 'worker.cuont'; did you mean 'worker.count'?"),
        ("wroker.cuont=1", "--set: unknown key 'wroker.cuont'; did you mean 'worker.count'?"),
        ("zzz.count.a=1", "--set: unknown key 'zzz.count.a'; known here: " + ", ".join(keys_of(Config))),
        ("worker=1", "--set: worker is a text; it must be a section of keys"),
        ("worker.path_map=a", "--set: worker.path_map is 'a'; it must be a mapping such as {a: b}"),
        ("handlers=a", "--set: handlers is 'a'; it must be a list, such as [a, b]"),
        ("producer.scan_dir=[a,b]", "--set: producer.scan_dir is a list; it must be the path of one directory"),
        ("sqlite.path= [a, b] ", "--set: sqlite.path is a list; it must be text that is not empty"),
    ],
)
def test_an_invalid_set_is_one_line(config_directory: ConfigDirectory, setting: str, line: str) -> None:
    assert config_directory.problems(None, {}, setting) == (line,)


@pytest.mark.parametrize("value", ["[x]", "./[a,b]", "[a,b]*"])
def test_brackets_can_be_part_of_a_name(config_directory: ConfigDirectory, value: str) -> None:
    assert config_directory.load(None, {}, f"producer.scan_dir={value}").config.producer.scan_dir == value


def test_a_list_in_a_variable_is_refused_where_one_value_is_expected(config_directory: ConfigDirectory) -> None:
    assert config_directory.problems(None, {"PRODUCER_SCAN_DIR": "[a, b]"}) == (
        "PRODUCER_SCAN_DIR is a list; producer.scan_dir must be the path of one directory",
    )
    loaded = config_directory.load(None, {"REDIS_PASSWORD": "[a, b]"})
    assert loaded.config.redis.password == "[a, b]", "a password may be anything"


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
        ("worker.max_memory=0", "a size such as 512MB"),
        ("worker.allow_commands=maybe", "true or false"),
        ("worker.after.dead=burn", "keep, delete or move:DIR"),
        ("worker.after.completed=move:", "keep, delete or move:DIR"),
        (
            "worker.after.dead=move:out/{date}",
            "DIR is used as it stands, without placeholders, and must not have braces",
        ),
        ("worker.after.completed=move: out", "keep, delete or move:DIR"),
        ("worker.after.completed=move:~/out", "~ is not replaced by a home directory"),
        ("worker.after.completed=move:data", "a directory other than producer.scan_dir"),
        ("worker.after.dead=move:./data/x/../", "a directory other than producer.scan_dir"),
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
        ("redis.url=redis://localhost/x", "its database is a number"),
        ("redis.url=rediss://localhost/0/1", "its database is a number"),
        ("redis.url=redis+sentinel://h1,h2/master/x?y", "its database is a number"),
        ("redis.url=redis+cluster://h1,h2/1", "its database is a number"),
        ("redis.url=unix:///run/redis.sock?db=x", "its database is a number"),
        ("producer.watch=sometimes", "auto, events, poll or off"),
        ("producer.scan_dir=", "the path of one directory"),
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
def test_the_error_for_an_invalid_value_says_what_is_expected(
    config_directory: ConfigDirectory, setting: str, expected: str
) -> None:
    (line,) = config_directory.problems(None, {}, setting)
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
        "redis.url=redis+sentinel://h1,h2:26379/master",
        "redis.url=redis+cluster://h1:7000,h2:7001",
        "redis.url=redis+cluster://h1:7000,h2:7001/",
        "redis.url=redis://localhost/",
        "redis.url=redis://u:p@localhost:1/15",
        "redis.url=unix:///run/redis.sock?a=b&db=15",
        "observability.tracing.endpoint=grpc://localhost:4317",
        "observability.log_level=WARN",
        "observability.metrics_port=0",
        "worker.starvation_share=0",
        "worker.after.completed=move:/done",
        "worker.after.completed=move:data/done",
        "worker.after.dead=move:.",
        "worker.allow_commands=on",
        "worker.shutdown_timeout=0",
    ],
)
def test_values_at_the_limit_are_accepted(config_directory: ConfigDirectory, setting: str) -> None:
    assert config_directory.load(None, {}, setting).is_set(setting.partition("=")[0])


def test_the_error_for_a_value_of_the_wrong_shape_names_the_shape(config_directory: ConfigDirectory) -> None:
    text = (
        "worker: {count: [1], path_map: [a]}\nredis: redis://:hunter2@h\nproducer: {include_globs: '*', scan_dir: {}}"
    )
    assert config_directory.problems(text) == (
        "config.yaml:2: redis is a text; it must be a section of keys",
        "config.yaml:1: worker.count is a list; it must be a whole number from 1 to 1024",
        "config.yaml:1: worker.path_map is a list; it must be a mapping such as {a: b}",
        "config.yaml:3: producer.scan_dir is a mapping; it must be the path of one directory",
        "config.yaml:3: producer.include_globs is '*'; it must be a list of at least one item, such as [a, b]",
    )


def test_a_variable_that_is_not_yaml_is_one_line_with_its_name(config_directory: ConfigDirectory) -> None:
    (line,) = config_directory.problems(None, {"WORKER_PRIORITIES": "[a"})
    assert line.startswith("WORKER_PRIORITIES: not valid YAML: ")


def test_an_error_stays_on_one_line_of_reasonable_length(config_directory: ConfigDirectory) -> None:
    (line,) = config_directory.problems(None, {"WORKER_COUNT": "a\nb" + "x" * 1000})
    assert "\n" not in line
    assert len(line) < 200


@pytest.mark.parametrize(
    "key",
    [
        "redis.addr",
        "redis.url",
        "redis.username",
        "redis.password",
        "redis.prefix",
        "worker.completed_list",
        "worker.heartbeat_key_pattern",
        "server.bind",
    ],
)
def test_a_value_that_is_sent_elsewhere_is_utf8(config_directory: ConfigDirectory, key: str) -> None:
    """Arguments and variables may be any bytes. Only paths and globs can hold those that are not UTF-8."""
    values = {"redis.addr": "\udcff:6379", "redis.url": "redis://\udcff", "worker.heartbeat_key_pattern": "\udcff%s"}
    (line,) = config_directory.problems(None, None, f"{key}={values.get(key, chr(0xDCFF))}")
    assert line.startswith(f"--set: {key} is ")


def test_a_path_may_be_any_bytes(config_directory: ConfigDirectory) -> None:
    assert config_directory.load(None, None, "producer.scan_dir=\udcff").config.producer.scan_dir == "\udcff"
