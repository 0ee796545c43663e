"""The figures of a run of `make bench`, round by round, as they are kept in a JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measures import Figures
from benchmarks.summary import best, median
from benchmarks.systems.system import System


class Results:
    """`data` is what the JSON file holds."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @classmethod
    def new(cls, systems: Iterable[System], *, server: str, rounds: int, is_quick: bool) -> Results:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "server": server,
            "rounds": rounds,
            "quick": is_quick,
            "load_before": os.getloadavg()[0],
        }
        described = {
            system.name: {"settings": system.settings, "store": system.store, "is_fileq": system.is_fileq}
            for system in systems
        }
        return cls({"about": about, "systems": described, "figures": {}, "failures": [], "runs": {}})

    @classmethod
    def read(cls, file: Path) -> Results:
        return cls(json.loads(file.read_text()))

    def write(self, file: Path) -> None:
        """Replaces the file in one step, so that an interrupted run leaves what it has measured."""
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(self.data, indent=1) + "\n")
        new.replace(file)

    def add(self, system: str, measure: str, figures: Figures) -> None:
        columns = self.data["figures"].setdefault(system, {})
        for key, value in figures.items():
            columns.setdefault(key, []).append(value)
        self._count_run(system, measure)

    def add_failure(self, system: str, measure: str, error: str) -> None:
        self.data["failures"].append({"system": system, "measure": measure, "error": error})
        self._count_run(system, measure)

    def add_time(self, measure: str, seconds: float) -> None:
        """What this measure took, for all systems and rounds together."""
        times = self.data.setdefault("seconds", {})
        times[measure] = times.get(measure, 0.0) + seconds

    def runs(self, system: str, measure: str) -> int:
        """How often the measure has run on the system, failed runs included."""
        return int(self.data["runs"].get(f"{measure} {system}", 0))

    def _count_run(self, system: str, measure: str) -> None:
        self.data["runs"][f"{measure} {system}"] = self.runs(system, measure) + 1

    def systems(self, store: str = "") -> list[str]:
        return [name for name, about in self.data["systems"].items() if about["store"] == store or not store]

    def value(self, system: str, column: str) -> float | None:
        """The median of the rounds; None if it was not measured."""
        values = self.data["figures"].get(system, {}).get(column)
        return median(values) if values else None

    def best_peer(self, column: str, better: Any, store: str = "redis") -> float | None:
        """The best median of the systems that are not fileq."""
        peers = (name for name in self.systems(store) if not self.data["systems"][name]["is_fileq"])
        values = [value for name in peers if (value := self.value(name, column)) is not None]
        return best(values, better) if values else None

    def best_fileq(self, column: str, better: Any, word: str) -> float | None:
        """The best median of the fileq systems on Redis with that word in their name, such as `thread`."""
        names = (n for n in self.systems("redis") if self.data["systems"][n]["is_fileq"] and word in n.split())
        values = [value for name in names if (value := self.value(name, column)) is not None]
        return best(values, better) if values else None
