"""docs/security.md: the tests that it names exist, its rows are complete, and its Redis user can do what it says."""

import ast
import re

import pytest
import redis

from fileq.core.api_key import Scope
from fileq.testing.conformance.builders import foreign, register
from tests.support.program import REPOSITORY
from tests.support.redis_store import Store

PAGE = REPOSITORY / "docs" / "security.md"
# A test of tests/, or one of the conformance suite, which runs on every broker.
NAMED = re.compile(r"`([a-z]+/[a-z]+/test_\w+\.py|conformance/\w+_tests\.py)::(test_\w+)`")


def functions_in(name: str) -> set[str]:
    top = REPOSITORY / ("fileq/testing" if name.endswith("_tests.py") else "tests")
    file = top / name
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE.read_text())
    assert len(named) == PAGE.read_text().count("::") > 40
    missing = [f"{file}::{name}" for file, name in named if name not in functions_in(file)]
    assert missing == []


def test_every_row_of_the_threat_table_names_a_test() -> None:
    text = PAGE.read_text().split("## What to set")[0]
    parties = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert len(parties) == 8
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        rows = [line for line in part.splitlines() if line.startswith("|")][2:]
        assert rows, part
        assert [row for row in rows if not NAMED.search(row.rpartition(" | ")[2])] == []
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == {scope.value for scope in Scope}


def test_the_user_for_producers_pushes_jobs_and_does_nothing_else(redis_server) -> None:
    """The permissions that the page recommends, on a real server."""
    [rules] = re.findall(r"^ACL SETUSER producer (.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    words = rules.replace(">secret", ">pass").split()
    with Store(redis_server) as store:
        store.client.execute_command("ACL", "SETUSER", "producer", "reset", *words)
        raw = foreign("theirs", priority="high")
        with redis_server.client(username="producer", password="pass") as producer:
            assert producer.execute_command("LPUSH", "jobqueue:high_priority", raw) == 1
            before = {key: store.client.dump(key) for key in store.client.scan_iter()}
            for refused in (
                *(["LRANGE", key, "0", "-1"] for key in ("jobqueue:high_priority", "jobqueue:dead_letter")),
                *(["LPUSH", key, raw] for key in (store.keys.dead, store.keys.completed, store.keys.processing("w1"))),
                ["LPUSH", "elsewhere", raw],
                ["RPOP", "jobqueue:high_priority"],
                ["LTRIM", "jobqueue:high_priority", "1", "0"],
                ["DEL", "jobqueue:high_priority"],
                ["HSET", store.keys.record("theirs"), "state", "completed"],
                ["HGETALL", store.keys.documents("keys")],
                ["PUBLISH", store.keys.events, "{}"],
                ["SUBSCRIBE", store.keys.events],
                ["EVAL", "return 1", "0"],
                *(["SCAN", "0"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["FLUSHALL"], ["ACL", "LIST"], ["MONITOR"]),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    producer.execute_command(*refused)
        assert {key: store.client.dump(key) for key in store.client.scan_iter()} == before
        register(store, "w1")
        [claim] = store.broker.settle_and_claim([], ["w1"]).claims
        assert (claim.id, claim.queue) == ("theirs", "high")
