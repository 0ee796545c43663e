"""What the kernel says of a file: which version it is, from its `stat`, and which file system it is on, from the mount
table. Every process computes signatures here, so that all of them agree.

A signature changes when the size or the modification time changes and, where inodes are compared, when another file
takes the place of this one. core/job.py describes the text. The ledger, the job and the check before a handler runs
compare signatures. Only a producer with `producer.identity: content` reads contents.

Whether other machines can change a file matters twice. Locks and shared memory do not work across machines, so no
database is kept on a network file system. Changes made by another machine cause no events here, so directories on a
network file system are polled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from fileq.core.job import is_same_version, signature_text, split_signature


def make_signature(size: int, mtime_ns: int) -> str:
    return f"{size}-{mtime_ns}"


def signature_of(status: os.stat_result) -> str:
    """The short form: size and modification time."""
    return make_signature(status.st_size, status.st_mtime_ns)


def changed_version(path: bytes, status: os.stat_result, expected: str) -> str | None:
    """The version that the file at this path is now; None if it is still the expected one. The inode counts only if the
    expected version has one and this machine sees a file system that keeps inodes: over NFS a file has another number
    than on the server. The mount table is read only if the inode is another one."""
    short = signature_of(status)
    if expected in (short, signature_text(short, status.st_ino)):
        return None
    is_kept = split_signature(expected).inode != "" and keeps_inodes(filesystem_type(path))
    now = signature_text(short, status.st_ino if is_kept else 0)
    return None if is_same_version(now, expected) else now


class FoundFile(Struct, frozen=True, gc=False):
    """A regular file at the moment of its last `stat`. `content` is its hash, "" if it was not read."""

    path: bytes
    size: int
    mtime_ns: int
    inode: int
    content: str = ""

    @property
    def signature(self) -> str:
        """The short form: size and modification time."""
        return make_signature(self.size, self.mtime_ns)

    def is_unchanged_since(self, earlier: FoundFile) -> bool:
        """Same size, modification time and inode: the content was neither written to nor replaced."""
        return (self.size, self.mtime_ns, self.inode) == (earlier.size, earlier.mtime_ns, earlier.inode)


def found_at(path: bytes, status: os.stat_result) -> FoundFile:
    return FoundFile(path, status.st_size, status.st_mtime_ns, status.st_ino)


# file systems

MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")
# All of FUSE counts, because any program or machine may be behind it; except fuseblk, which is a local disk (NTFS).
_NETWORK = re.compile(
    "9p|acfs|afs|beegfs|ceph|cifs|coda|fuse([.].+)?|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|prl_fs|pvfs2|"
    "smb.*|vboxsf|virtiofs|vmhgfs"
)
# A file keeps its inode number here as long as it exists, also after a restart, and every process sees the same one.
# Not so on network file systems, FUSE and overlays; FAT has no inodes.
_KEEPS_INODES = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs")
)


class Mount(NamedTuple):
    number: int
    parent: int  # the number of the mount that this one is mounted on
    point: bytes
    kind: str  # the type of the file system
    source: str  # a device or a network export
    part: str  # the directory of the source that is mounted; "/" for all of it

    def contains(self, path: bytes) -> bool:
        return self.point == b"/" or path == self.point or path.startswith(self.point + b"/")

    @property
    def device(self) -> str:
        """A name for what is mounted, stable across reboots, without whitespace. Mounts of different parts of one disk
        have different names."""
        name = f"{self.kind}:{self.source}" + (f"[{self.part}]" if self.part != "/" else "")
        return "".join(c if c.isprintable() and not c.isspace() else "_" for c in name)


def filesystem_type(path: str | bytes | os.PathLike[str]) -> str:
    """The type of the file system that the path is on, or would be on if it existed; "" if unknown."""
    mount = mount_of(os.fsencode(os.path.realpath(path)), mounts())
    return mount.kind if mount is not None else ""


def is_network(filesystem: str) -> bool:
    """Whether files on a file system of this type may be changed by other machines."""
    return _NETWORK.fullmatch(filesystem) is not None


def keeps_inodes(filesystem: str) -> bool:
    """Whether the inode number of a file on a file system of this type identifies it."""
    return filesystem in _KEEPS_INODES


def mount_of(path: bytes, table: Sequence[Mount]) -> Mount | None:
    """The mount that a real path (one without links) is on. Follows the mounts as the kernel does, from parent to
    child. The longest mount point is not always the right one: a later mount above it hides it."""
    candidates = [mount for mount in table if mount.contains(path)]
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
    """Parses lines such as `36 35 98:0 /part /mount\\040point rw master:1 - ext4 /dev/sda rw` and keeps their order."""
    found = []
    for line in read_mountinfo().splitlines():
        target, separator, rest = line.partition(b" - ")
        fields = target.split(b" ")
        kind, _, source = rest.partition(b" ")
        if separator and len(fields) > 4 and fields[0].isdigit() and fields[1].isdigit():
            number, parent, point, part = int(fields[0]), int(fields[1]), _unescape(fields[4]), _text(fields[3])
            found.append(Mount(number, parent, point, _text(kind), _text(source.split(b" ")[0]), part))
    return found


class ScanDirMounts:
    """The mounts that scan_dir is on and those below it, as they were at the last `refresh`."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._real_root = b""
        self._mounts: list[Mount] = []
        self._below: list[Mount] = []  # below scan_dir, and not hidden by another mount
        self._last = (b"", "", "")  # directory, type and device: files come directory by directory
        self.refresh()

    def refresh(self) -> bool:
        """Reads the mount table again. True if something at or below scan_dir has changed."""
        real_root = os.path.realpath(self.root)
        below = real_root.rstrip(b"/") + b"/"
        now = [mount for mount in mounts() if mount.point.startswith(below) or mount.contains(real_root)]
        if (real_root, now) == (self._real_root, self._mounts):
            return False
        self._real_root, self._mounts = real_root, now
        self._below = [m for m in now if m.point.startswith(below) and mount_of(m.point, now) == m]
        self._last = _described(self.root, mount_of(real_root, now))
        return True

    def is_remote(self, directory: bytes) -> bool:
        return is_network(self._describe(directory)[1])

    def filesystem(self, directory: bytes) -> str:
        return self._describe(directory)[1]

    def device(self, directory: bytes) -> str:
        """The name of what is mounted there; "?" if unknown."""
        return self._describe(directory)[2]

    @property
    def are_all_remote(self) -> bool:
        return self.is_remote(self.root) and all(is_network(mount.kind) for mount in self._below)

    def remote_directories(self) -> list[bytes]:
        """The network mounts below scan_dir, by their paths below it."""
        start = len(self._real_root.rstrip(b"/")) + 1
        return [os.path.join(self.root, mount.point[start:]) for mount in self._below if is_network(mount.kind)]

    def _describe(self, directory: bytes) -> tuple[bytes, str, str]:
        if self._below and self._last[0] != directory:
            self._last = _described(directory, mount_of(os.path.realpath(directory), self._mounts))
        return self._last


def _described(directory: bytes, mount: Mount | None) -> tuple[bytes, str, str]:
    return (directory, mount.kind, mount.device) if mount is not None else (directory, "", "?")


def _text(field: bytes) -> str:
    return _unescape(field).decode(errors="backslashreplace")


def _unescape(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text)
