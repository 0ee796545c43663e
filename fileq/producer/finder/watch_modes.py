"""Decides which directories of scan_dir are watched by events and which are polled. Watches nothing itself.

`producer.watch` is the setting: `events` and `poll` hold everywhere, `off` means neither, and `auto` polls network file
systems, because changes made by other machines cause no events here.
"""

from __future__ import annotations

from fileq.files.mounts import ScanDirMounts


class WatchModes:
    def __init__(self, setting: str, mounts: ScanDirMounts) -> None:
        self._setting = setting
        self._mounts = mounts
        self._has_watches = True

    @property
    def is_event_free(self) -> bool:
        """No directory of the tree is watched by events."""
        if self._setting in ("off", "poll") or not self._has_watches:
            return True
        return self._setting == "auto" and self._mounts.are_all_remote

    def is_polled(self, directory: bytes) -> bool:
        """Whether events of this directory are missing or incomplete."""
        if self._setting == "poll" or not self._has_watches:
            return True
        return self._setting == "auto" and self._mounts.is_remote(directory)

    def polled(self) -> list[bytes]:
        """The directories to scan after every poll interval."""
        if self._setting == "off":
            return []
        if self.is_polled(self._mounts.root):
            return [self._mounts.root]
        if self._setting == "events":
            return []
        return self._mounts.remote_directories()

    def poll_everything(self) -> None:
        """The kernel has no more watches: from now on nothing is watched by events."""
        self._has_watches = False
