"""What the harness knows about a system: its commands, and the settings that a reader of the figures must know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PROGRAMS = Path(__file__).parents[1] / "programs"


@dataclass(frozen=True)
class Place:
    """Where one run happens: a new directory, an empty server. `log` is the file to which every job appends."""

    folder: Path
    redis_port: int
    directory: Path | None = None  # of the files, if the run is about files

    @property
    def log(self) -> Path:
        return self.folder / "ran"

    @property
    def database(self) -> Path:
        return self.folder / "queue.db"


@dataclass(frozen=True)
class Command:
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    """`share` is the share of a measure's jobs that a slower system gets, so that all take about the same time."""

    name: str
    settings: str
    worker: Callable[[Place], Command]
    client: Callable[[Place], Command]
    slots: int = 16
    store: Literal["redis", "sqlite"] = "redis"
    is_fileq: bool = False
    has_bulk: bool = True
    share: float = 1.0
    # fileq finds the files itself; for a peer the client walks through them
    files: Callable[[Place], Command] | None = None
    # one scan of a directory of known files
    scan: Callable[[Place], Command] | None = None

    @property
    def is_default(self) -> bool:
        """Whether its slot count is the one at which the systems are compared."""
        return self.slots == 16


def common_environment(place: Place, slots: int) -> dict[str, str]:
    return {
        "BENCH_LOG": str(place.log),
        "BENCH_REDIS_PORT": str(place.redis_port),
        "BENCH_SLOTS": str(slots),
        "PYTHONPATH": str(PROGRAMS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
