"""Imports go down only, never up and never sideways; each heavy library has one owner."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.statements import statements_of

PACKAGE = Path(__file__).parents[3] / "fileq"

# From the bottom up. A module imports from its own package and from packages before it in this list, so never sideways.
LAYERS = (
    "core",
    "files",
    "config",
    "brokers",
    "queries",
    "webhooks",
    "actions",
    "handlers",
    "producer",
    "worker",
    "observe",
    "runtime",
    "client",
    "commands",
    "server",
    "cli",
    "testing",
)
# These are next to each other in the design: neither imports the other, in either direction.
SIDE_BY_SIDE = (("producer", "worker"), ("producer", "observe"), ("worker", "observe"), ("cli", "testing"))
# Packages that only the named ones import.
IMPORTED_BY = {"observe": {"runtime"}, "cli": {"__main__"}, "testing": set[str](), "server": {"cli"}}
# Heavy or optional libraries, and the only part that may import each.
OWNERS = {
    "redis": "fileq.brokers.redis",
    "hiredis": "fileq.brokers.redis",
    "sqlite3": ("fileq.brokers.sqlite", "fileq.brokers.rules"),
    "yaml": "fileq.config",
    "bracex": "fileq.files.globs",
    "watchdog": "fileq.producer.finder.finder",
    "structlog": "fileq.observe.logs",
    "prometheus_client": "fileq.observe.metrics",
    "opentelemetry": "fileq.observe.tracing",
    "grpc": "fileq.observe.tracing",
    "starlette": "fileq.server",
    "uvicorn": "fileq.server",
    "jinja2": "fileq.server.console",
    "markupsafe": "fileq.server.console",
    "pytest": "fileq.testing",
    "hypothesis": "fileq.testing",
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def imports_of(path: Path) -> list[str]:
    """But for those that only type checkers see: they bind nothing when the program runs."""
    return list(_imports_of(ast.parse(path.read_text())))


def _imports_of(tree: ast.Module) -> Iterator[str]:
    unseen = {
        id(inner)
        for node in statements_of(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in (statement, *statements_of(statement))
    }
    for node in statements_of(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str:
    """`core` for fileq.core.job; "" for fileq itself, which holds the version and what handlers import."""
    return module.split(".")[1] if "." in module else ""


def wrong_imports(own: str, path: Path) -> list[str]:
    """The packages that this module of the package `own` imports from and must not."""
    others = {package_of(name) for name in imports_of(path) if name.startswith("fileq.")} & set(LAYERS) - {own}
    beside = {b for a, b in SIDE_BY_SIDE if a == own} | {a for a, b in SIDE_BY_SIDE if b == own}
    return sorted(
        other
        for other in others
        if LAYERS.index(other) > LAYERS.index(own) or other in beside or own not in IMPORTED_BY.get(other, LAYERS)
    )


# One test for each rule and not for each module: most of the time of a short test is pytest's own.
def test_every_module_imports_only_from_packages_below_its_own() -> None:
    packages = {module: package_of(module) for module, _ in modules()}
    assert set(packages.values()) - {"", "__main__", *LAYERS} == set(), "a package has no place in LAYERS"
    wrong = {
        module: wrong_imports(packages[module], path)
        for module, path in modules()
        if packages[module] not in ("", "__main__")
    }
    assert {module: names for module, names in wrong.items() if names} == {}


def test_only_the_package_and_its_entry_point_stand_outside_a_package() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_each_library_has_one_owner() -> None:
    for module, path in modules():
        for name in imports_of(path):
            owner = OWNERS.get(name.partition(".")[0])
            assert owner is None or module.startswith(owner), f"{module} imports {name}, which belongs to {owner}"


def test_one_lua_file_a_verb_and_each_opens_with_its_map() -> None:
    files = {path.stem: path.read_text() for path in (PACKAGE / "brokers/redis/lua").glob("*.lua")}
    verbs = {"enqueue", "settle_and_claim", "claim", "renew", "admit", "promote", "reap"}
    assert verbs <= set(files)
    for name, text in files.items():
        head = "\n".join(itertools.takewhile(lambda line: line.startswith(("#!", "--")), text.splitlines()))
        assert text.startswith("#!lua") or "Part of settle_and_claim" in head, name
        assert "KEYS" in head or "ARGV" in head, name
