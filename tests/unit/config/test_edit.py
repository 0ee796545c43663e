"""`config set` changes one value in a file and nothing else."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.config.edit import set_in_text
from fileq.config.read import Node, Origin
from fileq.config.schema import every_key, is_setting
from fileq.config.show import example_yaml, to_yaml
from fileq.config.sources import parse_yaml
from fileq.core.errors import ConfigError

FILE = """\
# ours
worker:   # the workers
  count: 3  # three
  # end of worker

producer: {scan_dir: /x, include_globs: ["a"]}  # on one line
redis:
imports:
  - a
  - b
# end
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("worker.count", "8", "count: 3  # three", "count: 8  # three"),
        ("worker.timeout", "90s", "# three\n", "# three\n  timeout: 1m30s\n"),
        ("worker.backoff.base", "1s", "# three\n", "# three\n  backoff:\n    base: 1s\n"),
        ("worker.backoff", "1s,5s", "# three\n", "# three\n  backoff: [1s, 5s]\n"),
        ("worker.path_map./a.b", "/c", "# three\n", '# three\n  path_map:\n    "/a.b": "/c"\n'),
        ("producer.scan_dir", "a b", "scan_dir: /x", 'scan_dir: "a b"'),
        ("producer.watch", "off", '["a"]}', '["a"], watch: "off"}'),
        ("producer.include_globs", "b,c", '["a"]', "[b, c]"),
        ("redis.addr", "h:1", "redis:\n", 'redis: {addr: "h:1"}\n'),
        ("redis.tls.enabled", "yes", "redis:\n", "redis: {tls: {enabled: true}}\n"),
        ("imports", "c", "imports:\n  - a\n  - b\n", "imports: [c]\n"),
        ("broker", "redis", "  - b\n", "  - b\nbroker: redis\n"),
    ],
)
def test_only_the_value_changes(key: str, value: str, old: str, new: str) -> None:
    assert set_in_text(FILE, key, value) == FILE.replace(old, new)


def test_a_mapping_is_replaced_with_the_comments_of_its_keys_and_keeps_its_own() -> None:
    keys = "    # first\n    base: 1s  # base\n    max: 9s  # max\n"
    changed = set_in_text(f"worker:\n  backoff:  # waits\n{keys}  # slots\n  count: 3\n", "worker.backoff", "[1s, 2s]")
    assert changed == "worker:\n  backoff: [1s, 2s]  # waits\n  # slots\n  count: 3\n"


def test_a_file_without_keys_or_a_last_newline_is_completed() -> None:
    assert set_in_text("", "worker.count", "8") == "worker:\n  count: 8\n"
    assert set_in_text("worker:\n  count: 3", "worker.timeout", "5s") == "worker:\n  count: 3\n  timeout: 5s\n"
    assert set_in_text("# mine", "worker.count", "8") == "# mine\nworker:\n  count: 8\n"
    assert set_in_text("{}", "worker.count", "8") == "{worker: {count: 8}}"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("worker.cuont", "8", "did you mean 'worker.count'"),
        ("worker.count", "x", "worker.count is 'x'; it must be a whole number"),
        ("worker.path_map", "x", "a mapping"),
        ("worker", "1", "worker is a section; set one of its keys: worker.count, "),
        ("imports", "[a", "not valid YAML"),
        ("redis.url", "redis://:hunter2", r"is 'redis://\*\*\*'; it must be"),
    ],
)
def test_an_unknown_key_or_invalid_value_is_an_error(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        set_in_text(FILE, key, value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["x: &x {count: 1}\nworker: *x\n", "worker: {timeout: 5s, # a comment\n}\n"], ids=["alias", "comment"]
)
def test_a_file_that_would_be_damaged_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigError, match="edit it by hand"):
        set_in_text(text, "worker.count", "8")


def test_a_file_that_is_not_a_mapping_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="at its top level"):
        set_in_text("- a\n", "worker.count", "8")


SECTIONS = {section.partition(":")[0]: section for section in re.split(r"^(?=[a-z_]+:)", example_yaml(), flags=re.M)}


@cache
def example(section: str) -> Node:
    return parse_yaml(SECTIONS[section], lambda line: Origin("file", str(line)))


@pytest.mark.parametrize("path", [path for path, key in every_key().items() if is_setting(key)])
def test_every_key_of_the_example_file_can_be_set_to_its_own_value(path: str) -> None:
    section = path.partition(".")[0]
    node = example(section).at(path)
    assert node is not None
    text = node.value if isinstance(node.value, str) else "~" if node.value is None else to_yaml(node.to_plain())
    changed = set_in_text(SECTIONS[section], path, text)
    if changed != SECTIONS[section]:  # otherwise it is parsed already
        assert parse_yaml(changed, lambda _: Origin("file")).to_plain() == example(section).to_plain()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_survives_being_written(text: str) -> None:
    for file in (FILE, "", "producer: {}\n"):
        node = parse_yaml(set_in_text(file, "producer.scan_dir", text), lambda _: Origin("file")).at(
            "producer.scan_dir"
        )
        assert node is not None
        assert node.value == text
