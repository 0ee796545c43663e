"""A directory, the rules of a scan over it, and walks."""

import os
from collections.abc import Mapping
from pathlib import Path

from fileq.config import config_from
from fileq.files.status import FoundFile
from fileq.producer.finder.scan import DirectoryWalk, ProducerCounts, ScanRules


class EnteredDirectories:
    """Records the directories that a walk enters."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def watch(self, directory: bytes) -> None:
        self.names.append(os.fsdecode(directory))


class ScannedTree:
    """A directory and its rules. The database of the broker is `fileq.db` in it."""

    def __init__(
        self, root: Path, *, after: Mapping[str, str] = {}, path_map: Mapping[str, str] = {}, **producer: object
    ) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.entered = EnteredDirectories()
        self.last_walk: DirectoryWalk | None = None
        self._counts = ProducerCounts()
        section = {"scan_dir": str(root), **producer}
        worker = {"after": dict(after), "path_map": dict(path_map)}
        self.config = config = config_from(
            {"sqlite": {"path": str(root / "fileq.db")}, "producer": section, "worker": worker}
        )
        self.rules = ScanRules(config, self._counts)

    @property
    def skipped(self) -> dict[str, int]:
        """How many files were skipped so far, by reason."""
        return {reason.value: count for reason, count in self._counts.skipped.items()}

    def add(self, *names: str) -> None:
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def start_walk(self, top: str = "") -> DirectoryWalk:
        self.last_walk = DirectoryWalk(self.rules, bytes(self.root / top), self.entered)
        return self.last_walk

    def walk(self, top: str = "") -> list[str]:
        """The names that a walk finds, sorted."""
        found = walked(self.start_walk(top))
        return sorted(os.fsdecode(os.path.relpath(file.path, bytes(self.root))) for file in found)

    @property
    def is_complete(self) -> bool:
        """Whether the last walk was complete."""
        assert self.last_walk is not None
        return self.last_walk.is_complete

    def finds(self, name: str | bytes) -> bool:
        """Whether the file counts when an event names it. If it does not, there is a reason to show, and only then."""
        path = os.path.join(bytes(self.root), os.fsencode(name))
        is_found = self.rules.find(path) is not None
        assert bool(self.why_left_out(name)) is not is_found
        return is_found

    def why_left_out(self, name: str | bytes) -> str:
        """Counts nothing."""
        return ScanRules(self.config).why_left_out(os.path.join(bytes(self.root), os.fsencode(name)))


def walked(walk: DirectoryWalk) -> list[FoundFile]:
    """All files of a walk, to its end."""
    found = []
    while not walk.is_done:
        found += walk.step()
    return found


def following(tmp_path: Path) -> ScannedTree:
    """A tree whose links are followed."""
    return ScannedTree(tmp_path / "in", follow_symlinks=True)
