"""The file system that a path is on, and whether other machines can change it. Reads only the kernel's mount table.

Two decisions depend on it. Locks and shared memory are not reliable across machines, so no database may be on a network
file system. Changes by another machine cause no inotify events, so such a directory must be polled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")
# Every kind of FUSE counts as network, because what is behind it is unknown; except fuseblk, a local disk (NTFS).
_NETWORK = re.compile(
    "9p|acfs|afs|beegfs|ceph|cifs|coda|fuse([.].+)?|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|prl_fs|pvfs2|"
    "smb.*|vboxsf|virtiofs|vmhgfs"
)


class Mount(NamedTuple):
    """One line of the mount table."""

    number: int
    parent: int
    point: bytes
    kind: str  # of file system
    source: str  # a device or an export
    part: str  # the directory of the source that is mounted

    def holds(self, path: bytes) -> bool:
        return self.point == b"/" or path == self.point or path.startswith(self.point + b"/")

    @property
    def device(self) -> str:
        """Names what is mounted, the same after a reboot and without blanks. Two parts of one disk have two names."""
        words = f"{self.kind}:{self.source}" + (f"[{self.part}]" if self.part != "/" else "")
        return "".join(c if c.isprintable() and not c.isspace() else "_" for c in words)


def filesystem_type(path: str | bytes | os.PathLike[str]) -> str:
    """The type of the file system of this path, which need not exist; "" if it is unknown."""
    mount = mount_of(os.fsencode(os.path.realpath(path)), mounts())
    return mount.kind if mount is not None else ""


def is_network(filesystem: str) -> bool:
    """Whether another machine may change files on this type of file system."""
    return _NETWORK.fullmatch(filesystem) is not None


def mount_of(path: bytes, table: Sequence[Mount]) -> Mount | None:
    """The mount of a path without symbolic links, found as the kernel does: from each mount to the one on top of it.

    That is not always the longest mount point: a later mount hides those below it."""
    candidates = [mount for mount in table if mount.holds(path)]
    numbers = {mount.number for mount in candidates}
    here: Mount | None = None
    steps = [mount for mount in candidates if mount.parent not in numbers or mount.parent == mount.number]
    while steps:
        nearest = min(len(mount.point) for mount in steps)
        here = [mount for mount in steps if len(mount.point) == nearest][-1]
        steps = [m for m in candidates if m.parent == here.number and m.number != here.number]
    return here


def read_mountinfo() -> bytes:
    try:
        with open(MOUNTINFO, "rb") as file:
            return file.read()
    except OSError:
        return b""


def mounts() -> list[Mount]:
    """The mount table, in its order, from lines like `36 35 98:0 /part /mount\\040point rw - ext4 /dev/sda rw`."""
    found = []
    for line in read_mountinfo().splitlines():
        mounted, separator, rest = line.partition(b" - ")
        fields = mounted.split(b" ")
        kind, _, source = rest.partition(b" ")
        if separator and len(fields) > 4 and fields[0].isdigit() and fields[1].isdigit():
            number, parent = int(fields[0]), int(fields[1])
            found.append(
                Mount(number, parent, _unescape(fields[4]), _text(kind), _text(source.split(b" ")[0]), _text(fields[3]))
            )
    return found


def _text(field: bytes) -> str:
    return _unescape(field).decode(errors="backslashreplace")


def _unescape(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text)
