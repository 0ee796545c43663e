"""Where a job's file is for this worker: the producer's path mapped, and the roots it must lie under. No broker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence


class Paths:
    """The mapping and the roots of one worker."""

    def __init__(self, scan_dir: str, path_map: Mapping[str, str], allowed_roots: Sequence[str]) -> None:
        pairs = ((os.fsencode(theirs), os.fsencode(ours)) for theirs, ours in path_map.items())
        cleaned = ((theirs.rstrip(b"/"), ours.rstrip(b"/")) for theirs, ours in pairs)
        self._map = sorted(cleaned, key=lambda pair: len(pair[0]), reverse=True)
        given = tuple(os.path.abspath(os.fsencode(root)) for root in allowed_roots)
        self.roots = given or (self.here(os.path.abspath(os.fsencode(scan_dir))),)

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
