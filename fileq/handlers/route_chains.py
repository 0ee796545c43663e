"""Checks where `on_completed` and `on_dead` lead: never in a circle, and to types that a route takes. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fileq.handlers.bound_route import BoundRoute

_OPTIONS = ("on_completed", "on_dead")


def chain_problems(routes: Sequence[BoundRoute]) -> list[str]:
    """One line for each route whose jobs could follow each other endlessly."""
    by_type: dict[str, BoundRoute] = {}
    for route in routes:
        if route.type is not None:
            by_type.setdefault(route.type, route)
    problems = []
    for type, route in by_type.items():
        for option in _OPTIONS:
            way = _way(by_type, getattr(route, option), type)
            if way:
                circle = " → ".join((type, *way))
                problems.append(f"{route.where}: {option} leads in a circle, so jobs would never end: {circle}")
    return problems


def chain_warnings(routes: Sequence[BoundRoute]) -> Iterator[str]:
    types = {route.type for route in routes}
    for route in routes:
        for option in _OPTIONS:
            wanted = getattr(route, option)
            if wanted is not None and wanted not in types:
                yield f"{route.where} has {option}: {wanted}, but no route takes jobs of that type: they would be dead"


def _way(by_type: Mapping[str, BoundRoute], start: str | None, end: str) -> list[str]:
    """The types on a way from one type to another, both included; empty if there is none."""
    came_from: dict[str, str | None] = {start: None} if start is not None else {}
    waiting = list(came_from)
    while waiting:
        type = waiting.pop()
        if type == end:
            way: list[str] = []
            at: str | None = type
            while at is not None:
                way.insert(0, at)
                at = came_from[at]
            return way
        for option in _OPTIONS:
            following = getattr(by_type[type], option) if type in by_type else None
            if following is not None and following not in came_from:
                came_from[following] = type
                waiting.append(following)
    return []
