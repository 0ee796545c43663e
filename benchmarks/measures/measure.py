"""What a measure is: its columns, the systems it applies to, and one run that yields a figure for each column."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.systems.system import System
from tests.support.servers import Server

Figures = dict[str, float]
FILES_PER_DIRECTORY = 500


@dataclass(frozen=True)
class Sizes:
    """How much work each measure does."""

    enqueued: int = 3_000
    enqueued_in_bulk: int = 20_000
    drained: int = 20_000
    pickups: int = 200
    idle_s: float = 8.0
    files: int = 20_000
    known_files: int = 100_000
    few_waiting: int = 1_000
    many_waiting: int = 1_000_000
    drained_before_them: int = 10_000
    spins: int = 400
    fleet: int = 1_000
    fleet_processes: int = 100
    fleet_idle_s: float = 30.0


QUICK = Sizes(
    enqueued=100,
    enqueued_in_bulk=500,
    drained=500,
    pickups=20,
    idle_s=0.5,
    files=300,
    known_files=1_000,
    few_waiting=100,
    many_waiting=3_000,
    drained_before_them=500,
    spins=50,
    fleet=40,
    fleet_processes=2,
    fleet_idle_s=1.0,
)


@dataclass(frozen=True)
class Column:
    """`better` says which direction is good; without it no ratio is shown."""

    key: str
    title: str
    digits: int = 0
    better: Literal["more", "less", ""] = "more"


@dataclass
class Bench:
    """What all runs share: the server, the sizes, and trees of files, which are made once."""

    server: Server
    sizes: Sizes
    folder: Path
    _trees: dict[int, Path] = field(default_factory=dict)

    def tree(self, files: int) -> Path:
        """A directory with that many small files, old enough to be taken at once."""
        if files not in self._trees:
            self._trees[files] = self.folder / f"tree-{files}"
            make_tree(self._trees[files], files)
        return self._trees[files]


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    columns: tuple[Column, ...]
    applies: Callable[[System], bool]
    run: Callable[[System, Bench], Figures]


def make_tree(tree: Path, files: int) -> None:
    tree.mkdir()
    old_s = time.time() - 3600
    for number in range(files):
        directory = tree / str(number // FILES_PER_DIRECTORY)
        if number % FILES_PER_DIRECTORY == 0:
            directory.mkdir()
        file = directory / f"file-{number}.txt"
        file.write_bytes(b"a small file\n")
        os.utime(file, (old_s, old_s))


def is_compared(system: System) -> bool:
    """On Redis, with the slot count at which the systems are compared."""
    return system.store == "redis" and system.is_default


def is_compared_as(*names: str) -> Callable[[System], bool]:
    """fileq as it is compared, and these peers: a goal needs no others, and each costs a minute."""
    return lambda system: is_compared(system) and (system.is_fileq or system.name in names)
