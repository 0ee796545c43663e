"""The file as YAML: its syntax errors, its pitfalls, and the line of each problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from fileq.config import Config, load
from tests.support.config_loading import ConfigDirectory


def problems(tmp_path: Path, text: str | bytes) -> tuple[str, ...]:
    return ConfigDirectory(tmp_path).problems(text)


def loaded(tmp_path: Path, text: str) -> Config:
    return ConfigDirectory(tmp_path).load(text).config


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("worker:\n\tcount: 3\n", "config.yaml:2: not valid YAML: found character"),
        ("worker:\n  count: 3\n count: 4\n", "config.yaml:3: not valid YAML: "),
        (
            "producer:\n  include_globs: [**/*]\n",
            "config.yaml:2: not valid YAML: a value that starts with * must be in quotes",
        ),
        (
            "producer:\n  scan_dir: *x\n",
            "config.yaml:2: not valid YAML: a value that starts with * must be in quotes",
        ),
        (b"worker: {count: \xff}", "config.yaml:1: not UTF-8 text, or it contains characters that YAML forbids"),
        ("imports: " + "[" * 2_000, "config.yaml:1: nested too deeply"),
        ("a: 1\n---\nb: 2\n", "config.yaml:2: not valid YAML: but found another document"),
    ],
)
def test_a_syntax_error_is_one_line_with_its_line_number(tmp_path: Path, text: str | bytes, line: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(line)
    assert "\n" not in problem


@pytest.mark.parametrize("text", ["- a\n", "hello", "3"])
def test_the_top_level_must_be_keys_and_values(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == (
        "config.yaml must hold keys and values at its top level, such as 'worker: {count: 8}'",
    )


def test_keys_given_twice_are_reported_with_both_lines(tmp_path: Path) -> None:
    text = "worker:\n  count: 3\n  timeout: 5s\n  count: 4\nworker: {}\n"
    assert problems(tmp_path, text) == (
        "config.yaml:4: worker.count is given twice, first on line 2",
        "config.yaml:5: worker is given twice, first on line 1",
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("worker: {count: !!python/object/apply:os.getpid []}", "worker.count has a YAML tag"),
        ("worker: !custom {count: 3}", "worker has a YAML tag"),
        ("imports: &a [*a]", "imports[0] refers to itself"),
        ("{[a]: b}", "the file has a key that is not a text"),
        ("worker: {<<: 5}", "worker merges (<<) something that is not a mapping"),
    ],
)
def test_yaml_features_beyond_plain_values_are_an_error(tmp_path: Path, text: str, what: str) -> None:
    assert problems(tmp_path, text)[0].startswith(f"config.yaml:1: {what}")


def test_a_contradiction_is_reported_at_the_line_of_the_value(tmp_path: Path) -> None:
    text = "worker:\n  backoff:\n    strategy: power\n    base: 1s\n"
    assert problems(tmp_path, text)[0].startswith("config.yaml:4: worker.backoff.base is 1s; with strategy power")


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = """
handlers:
  - &common {match: a, use: "a:b", timeout: 5s, max_retries: 1}
  - {<<: *common, match: b}
  - {match: c, <<: [{timeout: 7s}, *common]}
"""
    routes = loaded(tmp_path, text).handlers
    assert [route.match for route in routes] == ["a", "b", "c"]
    assert [route.timeout for route in routes] == [5.0, 5.0, 7.0]
    assert [route.max_retries for route in routes] == [1, 1, 1]


def test_aliases_of_aliases_do_not_explode(tmp_path: Path) -> None:
    levels = "".join(f"  - &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 30))
    (line, *_) = problems(tmp_path, f"imports:\n  - &l0 [a]\n{levels}")
    assert line == "config.yaml:2: imports[0] is a list; it must be a module such as package.module"


def test_quotes_make_no_difference_to_the_kind_of_a_value(tmp_path: Path) -> None:
    text = 'worker: {count: "8", allow_commands: "yes", heartbeat_ttl: "5s"}\nredis: {username: 1:30, prefix: 7}\n'
    config = loaded(tmp_path, text)
    assert (config.worker.count, config.worker.allow_commands, config.worker.heartbeat_ttl) == (8, True, 5.0)
    assert (config.redis.username, config.redis.prefix) == ("1:30", "7")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xef\xbb\xbfworker: {count: 3}\r\n")
    assert load(environ={}, cwd=tmp_path).config.worker.count == 3
