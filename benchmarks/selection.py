"""Which measures and systems a command line chooses."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measures import ALL, Measure
from benchmarks.systems.system import System


class UnknownWord(Exception):
    pass


def select(words: Sequence[str], systems: Sequence[System]) -> tuple[list[Measure], list[System]]:
    """Each word is the name of a measure, or words of system names: `drain fileq` or `pickup "fileq thread" huey`.

    A whole name chooses that system only: `huey` is the one on Redis, `huey sqlite` the other. Several measures, or
    several systems, are all taken. Without a measure all measures are taken, without a system all systems."""
    measures = [measure for measure in ALL if measure.name in words]
    chosen: list[System] = []
    for word in words:
        exact = [system for system in systems if system.name == word]
        matching = exact or [system for system in systems if _matches(word, system.name)]
        if not matching and word not in {measure.name for measure in ALL}:
            raise UnknownWord(
                f"{word!r} is neither a measure nor a system; measures: {', '.join(measure.name for measure in ALL)}; "
                f"systems: {', '.join(system.name for system in systems)}"
            )
        chosen += [system for system in matching if system not in chosen]
    ordered = [system for system in systems if system in chosen] or list(systems)
    return measures or list(ALL), ordered


def _matches(word: str, name: str) -> bool:
    """Whether every part of `word` is a word of the name."""
    return set(word.split()) <= set(name.split())
