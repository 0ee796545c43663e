"""The directories of `worker.after` (`move:DIR`) below scan_dir. Their files are done: they are never found again.

Knows them by their names below scan_dir, both as configured and with symbolic links resolved. A DIR that is written as
workers see it is mapped back to the producer's path by `worker.path_map`.
"""

from __future__ import annotations

import os

from fileq.config import Config


class MoveFolders:
    """`root` is the absolute path of scan_dir."""

    def __init__(self, config: Config, root: bytes) -> None:
        self._root = root
        folders = [os.path.abspath(os.fsencode(folder)) for folder in config.worker.after.folders]
        self._folders = {path for folder in folders for path in (folder, config.paths.there(folder))}
        self._names: frozenset[bytes] = frozenset()
        self._real: tuple[bytes, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Resolves links again. They may lead elsewhere now, and a DIR that did not exist may exist."""
        if not self._folders:
            return
        real_root = os.path.realpath(self._root)
        real = {os.path.realpath(folder) for folder in self._folders}
        names = {_below(self._root, folder) for folder in self._folders} | {_below(real_root, path) for path in real}
        self._names = frozenset(names - {b""})
        self._real = tuple(path for path in real if _below(real_root, path))

    def contains_name(self, name: bytes) -> bool:
        """Whether this path below scan_dir is such a directory, or is below one. Reads no file."""
        if not self._names:
            return False
        while name:
            if name in self._names:
                return True
            name = os.path.dirname(name)
        return False

    def contains_real(self, real: bytes) -> bool:
        """The same for an absolute path without links."""
        return any(real == folder or real.startswith(folder + b"/") for folder in self._real)


def _below(root: bytes, path: bytes) -> bytes:
    """The path below the root, or b"" if it is not below it."""
    above = root.rstrip(b"/") + b"/"
    return path[len(above) :] if path.startswith(above) else b""
