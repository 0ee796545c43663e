"""Which sources set a value, which of them takes precedence, and how values are spelled in each."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fileq.config import Config, load
from fileq.config.read import Origin
from fileq.config.show import secret_variables
from fileq.config.sources import variable_names
from fileq.config.trusted_place import untrusted_directory
from fileq.core.errors import ConfigError
from tests.support.config_loading import ConfigDirectory
from tests.support.unprivileged import open_path, unprivileged

__all__ = ["open_path"]

CONFIG_OF_THE_CONTRACT = """
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
def config_directory(tmp_path: Path) -> ConfigDirectory:
    return ConfigDirectory(tmp_path)


def test_without_any_source_every_value_is_its_default(config_directory: ConfigDirectory) -> None:
    loaded = config_directory.load()
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {Origin("default")}
    assert loaded.path is None


@pytest.mark.parametrize("text", ["", "# only a comment\n", "worker:\nredis:\n  tls:\nhandlers: ~\n"])
def test_an_empty_file_and_empty_sections_are_defaults(config_directory: ConfigDirectory, text: str) -> None:
    loaded = config_directory.load(text)
    assert loaded.config == Config()
    assert loaded.path == "config.yaml"


def test_each_layer_overrides_the_one_below(config_directory: ConfigDirectory) -> None:
    text, plain, prefixed = "worker: {count: 2}", {"WORKER_COUNT": "3"}, {"FILEQ_WORKER_COUNT": "4"}
    assert config_directory.load().config.worker.count == 16
    assert config_directory.load(text).config.worker.count == 2
    assert config_directory.load(text, plain).config.worker.count == 3
    assert config_directory.load(text, plain | prefixed).config.worker.count == 4
    assert config_directory.load(text, plain | prefixed, "worker.count=5").config.worker.count == 5
    assert config_directory.load(text, plain, "worker.count=5", "worker.count=6").config.worker.count == 6


def test_every_value_has_its_origin(config_directory: ConfigDirectory) -> None:
    loaded = config_directory.load(
        "worker:\n  count: 2\n  timeout: 1m\n", {"WORKER_TIMEOUT": "2m", "FILEQ_BROKER": "memory"}, "redis.db=1"
    )
    assert loaded.origins["worker.count"] == Origin("file", "config.yaml:2")
    assert loaded.origins["worker.timeout"] == Origin("env", "WORKER_TIMEOUT")
    assert loaded.origins["broker"] == Origin("env", "FILEQ_BROKER")
    assert loaded.origins["redis.db"] == Origin("--set")
    assert loaded.origins["worker.isolation"] == Origin("default")
    assert loaded.is_set("redis.db")
    assert not loaded.is_set("handlers")
    assert not loaded.config.handlers_are_given


def test_the_environment_of_the_process_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILEQ_WORKER_COUNT", "7")
    assert load(cwd=tmp_path).config.worker.count == 7
    assert load(environ={}, cwd=tmp_path).config.worker.count == 16


def test_an_empty_variable_is_unset(config_directory: ConfigDirectory) -> None:
    assert (
        config_directory.load("worker: {count: 2}", {"WORKER_COUNT": "", "FILEQ_WORKER_COUNT": ""}).config.worker.count
        == 2
    )


def test_every_setting_has_a_variable_of_its_own() -> None:
    names = variable_names(["high", "low"])
    assert len(set(names.values())) == len(names)
    assert names["OBSERVABILITY_TRACING_ENABLED"] == "observability.tracing.enabled"
    assert names["WORKER_BACKOFF_BASE"] == "worker.backoff.base"


@pytest.mark.parametrize("name", ["BROKER", "IMPORTS", "HANDLERS"])
def test_top_level_keys_are_read_only_with_the_prefix(config_directory: ConfigDirectory, name: str) -> None:
    assert config_directory.load(None, {name: "nonsense;"}).config == Config()
    assert config_directory.problems(None, {f"FILEQ_{name}": "nonsense;"})[0].startswith(f"FILEQ_{name}")


def test_names_of_other_job_servers_set_the_server_and_the_settings_own_variable_has_precedence(
    config_directory: ConfigDirectory,
) -> None:
    key = "k" * 20
    server = config_directory.load(
        None, {"API_KEY": key, "PORT": "81", "FILEQ_SERVER_PORT": "tcp://10.0.0.1:80"}
    ).config.server
    assert (server.api_key, server.port) == (key, 81), "what Kubernetes says about a service is no port"
    both = {"PORT": "81", "SERVER_PORT": "82", "FILEQ_API_KEY": key}
    server = config_directory.load(None, both).config.server
    assert (server.api_key, server.port) == ("", 82)
    assert "API_KEY" in secret_variables((), {"API_KEY": key})


def test_the_variables_of_other_job_servers_are_accepted_in_their_spelling(config_directory: ConfigDirectory) -> None:
    environ = {
        "WORKER_CONCURRENCY": "7",
        "JOB_DEFAULT_TIMEOUT": "30",
        "JOB_DEFAULT_MAX_RETRIES": "5",
        "JOB_DEFAULT_RETRY_DELAY": "2s",
        "DASHBOARD_ENABLED": "false",
        "DASHBOARD_USERNAME": "ann",
        "DASHBOARD_PASSWORD": "a-password",
        "REDIS_URL": "redis.example:6380",
    }
    loaded = config_directory.load("redis: {url: 'redis://other'}\nworker: {count: 2}", environ)
    worker, server = loaded.config.worker, loaded.config.server
    assert (worker.count, worker.timeout, worker.max_retries, worker.backoff.base) == (7, 30.0, 5, 2.0)
    assert (server.console, server.username, server.password) == (False, "ann", "a-password")
    assert (loaded.config.redis.url, loaded.config.broker_kind) == ("redis://redis.example:6380", "redis")
    assert str(loaded.origins["worker.count"]) == "WORKER_CONCURRENCY"
    assert str(loaded.origins["redis.url"]) == "REDIS_URL"
    own = {**environ, "WORKER_COUNT": "8", "WORKER_TIMEOUT": "9s", "FILEQ_SERVER_USERNAME": "bob"}
    config = config_directory.load(None, own).config
    assert (config.worker.count, config.worker.timeout, config.server.username) == (8, 9.0, "bob")
    assert config_directory.problems(None, {"REDIS_URL": "nothing"})[0].startswith("REDIS_URL")
    assert secret_variables((), environ) == ("DASHBOARD_PASSWORD",)


def test_a_password_that_is_the_user_name_is_refused(config_directory: ConfigDirectory) -> None:
    [problem] = config_directory.problems(None, {"DASHBOARD_USERNAME": "admin", "DASHBOARD_PASSWORD": "Admin"})
    assert "server.password is the same as server.username" in problem
    assert config_directory.problems(None, {"DASHBOARD_PASSWORD": "secret"})


def test_unknown_names_with_the_prefix_are_listed_and_never_an_error(config_directory: ConfigDirectory) -> None:
    environ = {
        "FILEQ_PORT": "tcp://10.0.0.1:80",
        "FILEQ_WORKER_CUONT": "3",
        "FILEQ_WORKER_QUEUES_URGENT": "x",
        "FILEQ_CONFIG": "",
        "FILEQ_JOB_ID": "1",
        "FILEQ_WORKER_COUNT": "3",
        "WORKER_SERVICE_HOST": "x",
    }
    assert config_directory.load(None, environ).unknown_env == (
        "FILEQ_PORT",
        "FILEQ_WORKER_CUONT",
        "FILEQ_WORKER_QUEUES_URGENT",
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FILEQ_REDIS_ADRESS", "FILEQ_REDIS_ADDR"),
        ("FILEQ_REDIS_URI", "FILEQ_REDIS_URL"),
        ("FILEQ_WORKER_CUONT", "FILEQ_WORKER_COUNT"),
        ("FILEQ_SCAN_DIR", "FILEQ_PRODUCER_SCAN_DIR"),
        ("FILEQ_METRICS_PORT", "FILEQ_OBSERVABILITY_METRICS_PORT"),
        ("FILEQ_CONFG", "FILEQ_CONFIG"),
        ("FILEQ_SITE", None),
        ("FILEQ_WORKER_QUEUES_URGENT", None),
    ],
)
def test_the_known_name_that_is_similar_to_an_unknown_one_is_found(
    config_directory: ConfigDirectory, name: str, meant: str | None
) -> None:
    misspelt = config_directory.load(None, {name: "redis://redis:6379"}).misspelt_env
    assert misspelt == ({name: meant} if meant else {})
    assert config_directory.load(None, {name: ""}).misspelt_env == {}


@pytest.mark.parametrize("service", ["FILEQ", "FILEQ_WORKER", "FILEQ_REDIS", "FILEQ_OBSERVABILITY_METRICS"])
def test_what_kubernetes_sets_for_a_service_is_not_taken_for_a_misspelt_setting(
    config_directory: ConfigDirectory, service: str
) -> None:
    environ = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "9090",
        f"{service}_SERVICE_PORT_METRICS": "9090",
        f"{service}_PORT_9090_TCP": "tcp://10.0.0.1:9090",
        f"{service}_PORT_9090_TCP_PROTO": "tcp",
        f"{service}_PORT_9090_TCP_PORT": "9090",
        f"{service}_PORT_9090_TCP_ADDR": "10.0.0.1",
    }
    assert config_directory.load(None, environ).misspelt_env == {}
    assert config_directory.load(None, {"FILEQ_METRIC_PORT": "tcp://10.0.0.1:9090"}).misspelt_env == {}


def test_a_text_from_the_environment_stays_text(config_directory: ConfigDirectory) -> None:
    redis = config_directory.load(
        None, {"REDIS_PASSWORD": "12345", "REDIS_USERNAME": "~", "REDIS_DB": "3"}
    ).config.redis
    assert (redis.password, redis.username, redis.db) == ("12345", "~", 3)


def test_a_text_in_the_file_stays_as_it_is_written(config_directory: ConfigDirectory) -> None:
    loaded = config_directory.load("redis: {password: 0123, username: yes}\nproducer: {watch: off}\n")
    assert (loaded.config.redis.password, loaded.config.redis.username) == ("0123", "yes")
    assert loaded.config.producer.watch == "off"


def test_lists_in_the_environment_are_comma_separated_or_yaml(config_directory: ConfigDirectory) -> None:
    def globs(text: str) -> tuple[str, ...]:
        return config_directory.load(None, {"PRODUCER_INCLUDE_GLOBS": text}).config.producer.include_globs

    assert globs("**/*.pdf, **/*.txt,") == ("**/*.pdf", "**/*.txt")
    assert globs("{a,b}/*.{pdf,txt},c") == ("{a,b}/*.{pdf,txt}", "c")
    assert globs('["**/*.{pdf,txt}", b]') == ("**/*.{pdf,txt}", "b")
    assert config_directory.load(None, {"PRODUCER_EXCLUDE_GLOBS": "[]"}).config.producer.exclude_globs == ()


def test_maps_in_the_environment_are_pairs_or_yaml(config_directory: ConfigDirectory) -> None:
    def path_map(text: str) -> Mapping[str, str]:
        return config_directory.load(None, {"WORKER_PATH_MAP": text}).config.worker.path_map

    assert path_map("/in=/mnt/in, /out=/mnt/out") == {"/in": "/mnt/in", "/out": "/mnt/out"}
    assert path_map("{/a=b: /c}") == {"/a=b": "/c"}
    assert config_directory.load(None, {}, "worker.path_map./data.v1=/mnt").config.worker.path_map == {
        "/data.v1": "/mnt"
    }


def test_handlers_can_come_from_the_environment(config_directory: ConfigDirectory) -> None:
    loaded = config_directory.load(None, {"FILEQ_HANDLERS": '[{match: "**/*.pdf", use: "a.b:c"}]'})
    assert [route.use for route in loaded.config.handlers] == ["a.b:c"]
    assert loaded.is_set("handlers")
    assert loaded.config.handlers_are_given


def test_unset_is_spelled_the_same_everywhere(config_directory: ConfigDirectory) -> None:
    text = "producer: {rate_limit_per_sec: 5}"
    assert config_directory.load(text).config.producer.rate_limit_per_sec == 5
    assert config_directory.load(text, {"PRODUCER_RATE_LIMIT_PER_SEC": "~"}).config.producer.rate_limit_per_sec is None
    assert config_directory.load(text, {}, "producer.rate_limit_per_sec=0").config.producer.rate_limit_per_sec == 0


def test_max_memory_is_bytes_or_none(config_directory: ConfigDirectory) -> None:
    assert config_directory.load("worker: {max_memory: 512MB}").config.worker.max_memory == 512 << 20
    assert config_directory.load("worker: {max_memory: ''}").config.worker.max_memory is None


# The file


def test_the_configuration_of_the_contract_means_redis_and_loads_unchanged(config_directory: ConfigDirectory) -> None:
    config = config_directory.load(CONFIG_OF_THE_CONTRACT).config
    assert config.broker_kind == "redis"
    assert config.redis.host_and_port == ("localhost", 6379)
    assert config.worker == Config().worker
    assert config.producer.rate_limit_per_sec == 100
    assert config.observability == Config().observability


def test_config_overrides_the_variable_which_overrides_config_yaml(tmp_path: Path) -> None:
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


def test_a_directory_instead_of_a_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^\. cannot be read: Is a directory$"):
        load(".", environ={}, cwd=tmp_path)


def test_a_named_file_in_a_directory_that_permissions_close_is_not_called_missing(open_path: Path) -> None:
    (open_path / "etc").mkdir()
    (open_path / "etc" / "a.yaml").touch()
    (open_path / "etc").chmod(0)
    with unprivileged(), pytest.raises(ConfigError, match=r"--config names 'etc/a\.yaml', which can't be read: Perm"):
        load("etc/a.yaml", environ={}, cwd=open_path)


# A file that was not named


def test_a_file_that_others_can_have_written_is_read_only_if_it_is_named(tmp_path: Path) -> None:
    """S1: in an inbox the sender's config.yaml was read, and its `imports` were executed."""
    file = tmp_path / "config.yaml"
    file.write_text("worker: {count: 3}\n")
    for changed, mode in ((file, 0o666), (tmp_path, 0o777)):
        before = changed.stat().st_mode
        changed.chmod(mode)
        with pytest.raises(ConfigError) as caught:
            load(environ={}, cwd=tmp_path)
        assert str(caught.value) == (
            f"./config.yaml is not read, because every user can write to {changed}; "
            "--config FILE names one that you trust"
        )
        assert load("config.yaml", environ={}, cwd=tmp_path).config.worker.count == 3
        assert load(environ={"FILEQ_CONFIG": "config.yaml"}, cwd=tmp_path).config.worker.count == 3
        changed.chmod(before)
    assert load(environ={}, cwd=tmp_path).config.worker.count == 3


def test_a_file_of_another_user_is_read_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1"""
    file = tmp_path / "config.yaml"
    file.write_text("worker: {count: 3}\n")
    real = os.stat

    def of_a_sender(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        return os.stat_result([*found[:4], 54321, *found[5:]]) if Path(path) == changed else found

    monkeypatch.setattr(os, "stat", of_a_sender)
    for changed in (file, tmp_path):
        with pytest.raises(ConfigError, match=f"because {changed} belongs to the user 54321; --config FILE"):
            load(environ={}, cwd=tmp_path)
        assert load("config.yaml", environ={}, cwd=tmp_path).config.worker.count == 3


def test_an_own_file_in_a_directory_like_tmp_is_read_but_no_module_is_imported_from_there(tmp_path: Path) -> None:
    """S1: with the sticky bit others can add files, and can't replace this one."""
    (tmp_path / "config.yaml").write_text("worker: {count: 3}\n")
    tmp_path.chmod(0o1777)
    assert load(environ={}, cwd=tmp_path).config.worker.count == 3
    assert untrusted_directory(str(tmp_path)) == f"every user can write to {tmp_path}"


def test_a_directory_may_be_writable_by_the_users_own_group_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: the umask 002 of many systems makes directories that the group of their only user can write to."""
    tmp_path.chmod(0o775)
    assert untrusted_directory(str(tmp_path)) == ""
    real = os.stat

    def of_senders(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        return os.stat_result([*found[:5], 54321, *found[6:]])

    monkeypatch.setattr(os, "stat", of_senders)
    assert untrusted_directory(str(tmp_path)) == f"the group 54321 can write to {tmp_path}"


def test_an_access_control_list_that_lets_others_write_counts_as_their_permission(tmp_path: Path) -> None:
    """S1: the bits of the mode show the list as those of the group, which may be the user's own."""
    user_object, user, group_object, mask, others = 1, 2, 4, 16, 32
    entries = ((user_object, 7, -1), (user, 7, 54321), (group_object, 5, -1), (mask, 7, -1), (others, 5, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(tmp_path, "system.posix_acl_access", acl)
    assert "can write to" in untrusted_directory(str(tmp_path))
