"""Imports go down only: what lies above may know what lies below, never the other way round."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fileq"

# From the bottom up. A module may import what stands in its own row or in a row before it.
LAYERS = [
    {"fileq.errors", "fileq"},
    {"fileq.job", "fileq.outcome", "fileq.finding", "fileq.traceparent"},
    {"fileq.config", "fileq.filesystems", "fileq.globs"},
    {"fileq.service", "fileq.signals", "fileq.terminal"},
    {"fileq.outage", "fileq.breaker", "fileq.brokers"},
    {"fileq.retry", "fileq.loop"},
    {"fileq.handlers", "fileq.reaper", "fileq.scheduler"},
    {"fileq.producer", "fileq.worker", "fileq.observe", "fileq.testing", "fileq.trying"},
    {"fileq.roles", "fileq.enqueueing"},
    {"fileq.once", "fileq.doctor"},
    {"fileq.admin"},
    {"fileq.cli"},
    {"fileq.__main__"},
]
# Heavy or optional libraries, and the only part that may import each.
OWNERS = {
    "redis": "fileq.brokers.redis",
    "hiredis": "fileq.brokers.redis",
    "sqlite3": "fileq.brokers.sqlite",
    "yaml": "fileq.config",
    "wcmatch": "fileq.globs",
    "watchdog": "fileq.producer.watch",
    "structlog": "fileq.observe.logs",
    "prometheus_client": "fileq.observe.metrics",
    "opentelemetry": "fileq.observe.tracing",
    "grpc": "fileq.observe.tracing",
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(path: Path) -> Iterator[str]:
    """But for those that only type checkers see: they bind nothing when the program runs."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> int | None:
    for i, layer in enumerate(LAYERS):
        if any(module == name or (name != "fileq" and module.startswith(f"{name}.")) for name in layer):
            return i
    return None


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_every_module_has_its_layer_and_imports_only_what_lies_below(module: str, path: Path) -> None:
    own = layer_of(module)
    assert own is not None, f"{module} has no place in LAYERS"
    above = [name for name in imports_of(path) if (layer_of(name) or 0) > own]
    assert not above, f"{module} reaches up to {above}"


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_each_library_has_one_owner(module: str, path: Path) -> None:
    for name in imports_of(path):
        owner = OWNERS.get(name.partition(".")[0])
        assert owner is None or module.startswith(owner), f"{module} imports {name}, which belongs to {owner}"


def test_the_job_never_sees_a_broker() -> None:
    assert not [name for name in imports_of(PACKAGE / "job.py") if "broker" in name]


def test_one_lua_file_a_verb_and_each_opens_with_its_map() -> None:
    files = {path.stem: path.read_text() for path in (PACKAGE / "brokers/redis/lua").glob("*.lua")}
    verbs = {"enqueue", "claim", "renew", "complete", "retry", "bury", "release", "cancel", "promote", "reap"}
    assert verbs <= set(files)
    for name, text in files.items():
        head = "\n".join(itertools.takewhile(lambda line: line.startswith(("#!", "--")), text.splitlines()))
        assert name == "prelude" or text.startswith("#!lua") or "Part of a turn" in head, name
        assert "KEYS" in head or "ARGV" in head, name
