"""Every key is in the example file and in docs/settings.md, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from fileq.config import Config, config_from, load
from fileq.config.schema import every_key, is_setting
from fileq.config.show import example_yaml, redacted, to_listing
from fileq.core.errors import ConfigError
from tests.support.reference_tables import settings_table

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "config.example.yaml").read_text()


def test_every_key_has_a_help_text() -> None:
    assert [path for path, key in every_key().items() if not key.help] == []


def test_the_example_file_is_generated_from_the_schema() -> None:
    assert example_yaml() == EXAMPLE, "regenerate it: make docs"


@pytest.mark.parametrize("page", ["docs/operating.md", "docs/production.md", "docs/crash-recovery.md"])
def test_the_time_until_the_jobs_of_a_killed_worker_return_follows_from_the_defaults(page: str) -> None:
    """The heartbeat lasts for two thirds of its time or more, then come two checks of a reaper, a third of it apart."""
    worker = Config().worker
    longest_s = worker.heartbeat_ttl + worker.reap_interval + worker.heartbeat_ttl / 3
    assert f"{worker.heartbeat_ttl:.0f} to {longest_s:.0f} s with the defaults" in (ROOT / page).read_text()


def test_the_example_file_holds_the_defaults_key_by_key() -> None:
    assert yaml.safe_load(EXAMPLE) == redacted(Config())


def test_the_example_file_sets_every_key_to_its_default() -> None:
    loaded = load(str(ROOT / "config.example.yaml"), environ={})
    assert loaded.config == msgspec.structs.replace(Config(), handlers_are_given=True)
    unset = [path for path, key in every_key().items() if is_setting(key) and not loaded.is_set(path)]
    assert unset == ["producer.rate_limit_per_sec"], "only ~ leaves a key unset"


def test_each_line_of_the_example_file_carries_a_comment() -> None:
    assert [line for line in EXAMPLE.splitlines() if not re.search(r"(^| )# \S", line)] == []


def test_the_page_of_settings_has_every_key_with_its_default() -> None:
    assert (ROOT / "docs" / "settings.md").read_text().endswith(f"\n\n{settings_table()}"), "run make docs"


def test_a_listing_has_every_value_and_its_origin() -> None:
    loaded = load(sets=["worker.count=3"], environ={"WORKER_QUEUES_HIGH": "h"}, cwd="/nonexistent")
    rows = {row.key: (row.value, str(row.origin)) for row in to_listing(loaded)}
    assert rows["worker.count"] == ("3", "--set")
    assert rows["worker.timeout"] == ("5m", "default")
    assert rows["worker.queues.high"] == ("h", "WORKER_QUEUES_HIGH")
    assert rows["worker.queues.low"] == ('"jobqueue:low_priority"', "default")
    assert rows["worker.path_map"] == ("{}", "default")
    assert rows["producer.rate_limit_per_sec"] == ("~", "default")
    assert rows["handlers"] == ('[{match: "**/*", use: "fileq.handlers:checksum"}]', "default")


def test_a_listing_shows_a_list_of_delays_as_it_was_written() -> None:
    loaded = load(sets=["worker.backoff=1s,5s"], environ={}, cwd="/nonexistent")
    for key in ("worker.backoff", "worker.backoff.base"):
        assert [(row.key, row.value) for row in to_listing(loaded, key)] == [("worker.backoff", "[1s, 5s]")]


def test_a_listing_can_be_limited_to_one_key_or_section() -> None:
    loaded = load(environ={}, cwd="/nonexistent")
    assert [row.key for row in to_listing(loaded, "worker.count")] == ["worker.count"]
    assert [row.key for row in to_listing(loaded, "sqlite")] == ["sqlite.path"]
    assert [row.key for row in to_listing(loaded, "worker.queues.low")] == ["worker.queues.low"]
    with pytest.raises(ConfigError, match=r"unknown key 'worker\.cuont'; did you mean 'worker\.count'\?"):
        to_listing(loaded, "worker.cuont")


def test_a_configuration_can_be_written_and_read_back() -> None:
    values = {
        "broker": "sqlite",
        "worker": {"max_memory": "1GB", "timeout": "1h30m", "backoff": ["1s", "2m"], "priorities": ["a", "b"]},
        "producer": {"watch": "off", "rate_limit_per_sec": 7, "scan_dir": 'a "b"\n: #'},
        "handlers": [{"type": "t", "command": ["x"], "give_up_on": [3, "E"], "backoff": {"base": "3s"}}],
    }
    config = config_from(values)
    assert config_from(redacted(config)) == config
