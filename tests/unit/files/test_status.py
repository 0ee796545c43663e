"""The file system of a path, read from mount tables of real machines."""

from pathlib import Path

import pytest

from fileq.files import status
from fileq.files.status import filesystem_type, is_network

MOUNTS = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
36 27 0:44 / /srv rw,relatime shared:1 - btrfs /dev/sdb rw
37 36 0:45 / /srv/share rw,relatime shared:2 master:7 - nfs4 nas:/export rw,vers=4.2
38 27 0:46 / /mnt/my\040files\011x rw - cifs //nas/my\040files rw
39 27 0:47 /sub /mnt/back\134slash rw - fuse.sshfs me@host:/ rw
40 27 0:48 / /mnt/over rw - ext4 /dev/sdc rw
41 27 0:49 / /mnt/over rw - virtiofs tag rw
42 27 0:50 / /mnt/caf\303\251 rw - xfs /dev/sdd rw
"""


@pytest.fixture(autouse=True)
def mount_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "read_mountinfo", lambda: MOUNTS)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me/fileq.db", "ext4"),
        ("/srv", "btrfs"),
        ("/srv/other/fileq.db", "btrfs"),
        ("/srv/share", "nfs4"),
        ("/srv/share/deep/down/fileq.db", "nfs4"),
        ("/mnt/my files\tx/fileq.db", "cifs"),
        ("/mnt/back\\slash/fileq.db", "fuse.sshfs"),
        ("/mnt/café/fileq.db", "xfs"),
    ],
)
def test_the_longest_mount_point_above_a_path_decides(path, kind):
    assert filesystem_type(path) == kind


def test_a_path_that_only_begins_like_a_mount_point_is_not_under_it():
    assert filesystem_type("/srv/shareholders/fileq.db") == "btrfs"


def test_the_later_of_two_mounts_on_one_directory_decides():
    assert filesystem_type("/mnt/over/fileq.db") == "virtiofs"


def test_a_path_may_be_bytes_that_are_not_utf8():
    assert filesystem_type(b"/srv/\xff.db") == "btrfs"


def test_symbolic_links_are_followed(tmp_path: Path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    table = MOUNTS + f"43 27 0:51 / {tmp_path}/far rw - nfs nas:/ rw\n".encode()
    monkeypatch.setattr(status, "read_mountinfo", lambda: table)
    assert filesystem_type(tmp_path / "link" / "fileq.db") == "nfs"


def test_malformed_lines_are_skipped(monkeypatch):
    monkeypatch.setattr(status, "read_mountinfo", lambda: b"\n1 2 3\n - \n" + MOUNTS)
    assert filesystem_type("/srv") == "btrfs"


def test_without_a_mount_table_the_type_is_unknown_and_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(status, "read_mountinfo", lambda: b"")
    assert filesystem_type("/srv") == ""
    assert not is_network("")


def test_a_missing_mount_table_counts_as_empty(monkeypatch, tmp_path: Path):
    monkeypatch.undo()
    monkeypatch.setattr(status, "MOUNTINFO", str(tmp_path / "none"))
    assert status.read_mountinfo() == b""


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "virtiofs", "glusterfs", "fuse", "fuse.sshfs"],
)
def test_a_type_that_other_machines_can_change_is_a_network_file_system(kind):
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "nfsd", "ntfs3"])
def test_a_local_disk_is_not_a_network_file_system(kind):
    assert not is_network(kind)


def test_a_later_mount_hides_the_mounts_below_it(monkeypatch):
    table = MOUNTS + b"50 27 0:60 / /srv rw - xfs /dev/sde rw\n"
    monkeypatch.setattr(status, "read_mountinfo", lambda: table)
    assert filesystem_type("/srv/share/fileq.db") == "xfs"


def test_a_mount_may_come_before_its_parent_in_the_table(monkeypatch):
    assert filesystem_type("/proc/self") == "proc"


def test_a_table_without_the_root_still_covers_its_mounts(monkeypatch):
    monkeypatch.setattr(status, "read_mountinfo", lambda: b"36 27 0:44 / /srv rw - btrfs /dev/sdb rw\n")
    assert filesystem_type("/srv/a") == "btrfs"
    assert filesystem_type("/home") == ""
