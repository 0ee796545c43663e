"""Which file system a path is on, told from mount tables of real machines."""

from pathlib import Path

import pytest

from fileq.files import mounts as filesystems
from fileq.files.mounts import filesystem_type, is_network

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
def mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: MOUNTS)


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


def test_of_two_mounts_on_one_place_the_later_counts():
    assert filesystem_type("/mnt/over/fileq.db") == "virtiofs"


def test_a_path_may_be_bytes_that_are_not_utf8():
    assert filesystem_type(b"/srv/\xff.db") == "btrfs"


def test_links_are_followed_to_where_the_file_really_is(tmp_path: Path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    table = MOUNTS + f"43 27 0:51 / {tmp_path}/far rw - nfs nas:/ rw\n".encode()
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: table)
    assert filesystem_type(tmp_path / "link" / "fileq.db") == "nfs"


def test_lines_that_make_no_sense_are_passed_over(monkeypatch):
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: b"\n1 2 3\n - \n" + MOUNTS)
    assert filesystem_type("/srv") == "btrfs"


def test_without_a_mount_table_the_type_is_unknown_and_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: b"")
    assert filesystem_type("/srv") == ""
    assert not is_network("")


def test_a_mount_table_that_is_not_there_is_empty(monkeypatch, tmp_path: Path):
    monkeypatch.undo()
    monkeypatch.setattr(filesystems, "_MOUNTINFO", str(tmp_path / "none"))
    assert filesystems.read_mountinfo() == b""


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "virtiofs", "glusterfs", "fuse", "fuse.sshfs"],
)
def test_what_other_machines_can_change_is_a_network_file_system(kind):
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "nfsd", "ntfs3"])
def test_a_local_disk_is_not_a_network_file_system(kind):
    assert not is_network(kind)


def test_a_mount_below_a_later_one_is_hidden_by_it(monkeypatch):
    table = MOUNTS + b"50 27 0:60 / /srv rw - xfs /dev/sde rw\n"
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: table)
    assert filesystem_type("/srv/share/fileq.db") == "xfs"


def test_a_mount_stands_on_its_parent_wherever_it_is_in_the_table(monkeypatch):
    assert filesystem_type("/proc/self") == "proc"


def test_where_the_root_is_not_in_the_table_what_is_counts(monkeypatch):
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: b"36 27 0:44 / /srv rw - btrfs /dev/sdb rw\n")
    assert filesystem_type("/srv/a") == "btrfs"
    assert filesystem_type("/home") == ""
