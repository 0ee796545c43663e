"""Where a job's file is for this worker: the producer's path mapped, and the roots it must lie under. No broker."""

from __future__ import annotations

import os
import threading
import time

from fileq.config import Config

LOOK_EVERY_S = 1.0


class Paths:
    """The mapping and the roots of one worker."""

    def __init__(self, config: Config) -> None:
        pairs = ((os.fsencode(theirs), os.fsencode(ours)) for theirs, ours in config.worker.path_map.items())
        cleaned = ((theirs.rstrip(b"/"), ours.rstrip(b"/")) for theirs, ours in pairs)
        self._map = sorted(cleaned, key=lambda pair: len(pair[0]), reverse=True)
        scan_dir = os.path.abspath(os.fsencode(config.producer.scan_dir))
        given = tuple(os.path.abspath(os.fsencode(root)) for root in config.worker.allowed_roots)
        self.roots = given or (self.here(scan_dir),)

    def here(self, path: bytes) -> bytes:
        """The path for this worker: the longest prefix that fits is replaced."""
        for theirs, ours in self._map:
            if path == theirs or path.startswith(theirs + b"/"):
                return ours + path[len(theirs) :] or b"/"
        return path

    def there(self, path: bytes) -> bytes:
        """The producer's name for a path of this worker; a name that is the producer's already stays."""
        if self.here(path) == path:
            for theirs, ours in self._map:
                if path == ours or path.startswith(ours + b"/"):
                    return theirs + path[len(ours) :] or b"/"
        return path

    def relative(self, path: bytes) -> str:
        """What globs look at: the path below its root, or the whole of it."""
        for root in self.roots:
            if path.startswith(root.rstrip(b"/") + b"/"):
                return os.fsdecode(path[len(root.rstrip(b"/")) + 1 :])
        return os.fsdecode(path.lstrip(b"/"))


class RootsWatch:
    """Looks whether the roots are there, in a thread of its own: a dead mount may hold a look for minutes."""

    def __init__(self, roots: tuple[bytes, ...]) -> None:
        self._roots = roots
        self._missing = self._look()
        self._seen_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def problem(self) -> str:
        """Why no file can be reached; "" while all roots are there."""
        if self._missing:
            return f"{', '.join(map(os.fsdecode, self._missing))} is missing (not mounted?)"
        if time.monotonic() - self._seen_s > 10 * LOOK_EVERY_S:
            return f"{', '.join(map(os.fsdecode, self._roots))} does not answer"
        return ""

    def close(self) -> None:
        self._stop.set()

    def _look(self) -> list[bytes]:
        return [root for root in self._roots if not os.path.isdir(root)]

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._missing = self._look()
            self._seen_s = time.monotonic()
