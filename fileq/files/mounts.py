"""Which file system a path lies on, and whether that one reaches other machines. Reads the kernel's mount table only.

It matters twice: locks and shared memory can't be trusted across machines, so no database goes there; and
changes made by another machine fire no events, so such a directory has to be polled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")
# FUSE of any kind counts: what answers behind it can't be told from here. fuseblk is a local disk (NTFS).
_NETWORK = re.compile(
    "9p|acfs|afs|beegfs|ceph|cifs|coda|fuse([.].+)?|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|prl_fs|pvfs2|"
    "smb.*|vboxsf|virtiofs|vmhgfs"
)


class Mount(NamedTuple):
    """One line of the mount table: where, which type, from what (a device, an export), and which part of that."""

    number: int
    parent: int
    point: bytes
    kind: str
    source: str
    part: str

    def holds(self, path: bytes) -> bool:
        return self.point == b"/" or path == self.point or path.startswith(self.point + b"/")

    @property
    def device(self) -> str:
        """What is mounted there, in words that outlive a reboot, without a blank: two mounts of one disk differ if
        they show different parts of it."""
        words = f"{self.kind}:{self.source}" + (f"[{self.part}]" if self.part != "/" else "")
        return "".join(c if c.isprintable() and not c.isspace() else "_" for c in words)


def filesystem_type(path: str | bytes | os.PathLike[str]) -> str:
    """The type of the file system that holds this path, or would hold it; "" where the kernel does not tell."""
    mount = mount_of(os.fsencode(os.path.realpath(path)), mounts())
    return mount.kind if mount is not None else ""


def is_network(filesystem: str) -> bool:
    """Whether a file there may be changed by another machine, or by a program that speaks for one."""
    return _NETWORK.fullmatch(filesystem) is not None


def mount_of(path: bytes, table: Sequence[Mount]) -> Mount | None:
    """The mount a real path leads to, found as the kernel does: from mount to mount, each on top of the one before.

    The longest mount point is not always it: one that lies below a later mount is hidden by that."""
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
        with open(_MOUNTINFO, "rb") as file:
            return file.read()
    except OSError:
        return b""


def mounts() -> list[Mount]:
    """From lines such as `36 35 98:0 /part /mount\\040point rw master:1 - ext4 /dev/sda rw`, in their order."""
    found = []
    for line in read_mountinfo().splitlines():
        place, separator, rest = line.partition(b" - ")
        fields = place.split(b" ")
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
