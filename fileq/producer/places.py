"""What kind of ground the files lie on: which directories fire events, which must be polled, and on which device."""

from __future__ import annotations

import os

from fileq.files.mounts import Mount, is_network, mount_of, mounts


class Places:
    """The mounts at and below one scan_dir, as they were at the last refresh."""

    def __init__(self, mode: str, root: bytes) -> None:
        self._mode = mode
        self._root = root
        self._has_watches = True
        self._real_root = b""
        self._mounts: list[Mount] = []
        self._below: list[Mount] = []  # those below scan_dir that no other mount hides
        self._last = (b"", "", "")  # directory, kind and device: files come directory by directory
        self.refresh()

    def refresh(self) -> bool:
        """Volumes come and go: asked once a scan. Whether anything has changed."""
        real_root = os.path.realpath(self._root)
        below = real_root.rstrip(b"/") + b"/"
        now = [mount for mount in mounts() if mount.point.startswith(below) or mount.holds(real_root)]
        if (real_root, now) == (self._real_root, self._mounts):
            return False
        self._real_root, self._mounts = real_root, now
        self._below = [m for m in now if m.point.startswith(below) and mount_of(m.point, now) == m]
        self._last = _described(self._root, mount_of(real_root, now))
        return True

    @property
    def hears_nothing(self) -> bool:
        """No part of the tree is worth a watch."""
        if self._mode in ("off", "poll") or not self._has_watches:
            return True
        return self._mode == "auto" and self.is_remote(self._root) and all(is_network(m.kind) for m in self._below)

    def is_polled(self, directory: bytes) -> bool:
        """Whether events from this directory can't be trusted to come."""
        if self._mode == "poll" or not self._has_watches:
            return True
        return self._mode == "auto" and self.is_remote(directory)

    def polled(self) -> list[bytes]:
        """The directories to scan again and again, because nobody tells what happens there."""
        if self._mode == "off":
            return []
        if self.is_polled(self._root):
            return [self._root]
        if self._mode == "events":
            return []
        start = len(self._real_root.rstrip(b"/")) + 1
        return [os.path.join(self._root, mount.point[start:]) for mount in self._below if is_network(mount.kind)]

    def poll_everything(self) -> None:
        """There are no more watches to be had."""
        self._has_watches = False

    def is_remote(self, directory: bytes) -> bool:
        return is_network(self._ground_of(directory)[1])

    def device(self, directory: bytes) -> str:
        """What is mounted there; "?" where the kernel does not tell."""
        return self._ground_of(directory)[2]

    def _ground_of(self, directory: bytes) -> tuple[bytes, str, str]:
        if self._below and self._last[0] != directory:
            self._last = _described(directory, mount_of(os.path.realpath(directory), self._mounts))
        return self._last


def _described(directory: bytes, mount: Mount | None) -> tuple[bytes, str, str]:
    return (directory, mount.kind, mount.device) if mount is not None else (directory, "", "?")
