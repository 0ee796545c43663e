"""Which directories are watched and which are polled, for given mount tables."""

from collections.abc import Callable

import pytest

from fileq.files import status
from fileq.files.status import ScanDirMounts
from fileq.producer.finder.finder import WatchModes

SYSTEM = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
"""
ROOT = b"/srv/data"


class Tree:
    """The mounts of a scan_dir, and how it is watched."""

    def __init__(self, mode: str, root: bytes) -> None:
        self.mounts = ScanDirMounts(root)
        self.modes = WatchModes(mode, self.mounts)


Make = Callable[..., Tree]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A function that makes /srv/data on a machine with these further mounts."""

    def tree(*lines: str, mode: str = "auto", root: bytes = ROOT) -> Tree:
        table = SYSTEM + "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(status, "read_mountinfo", lambda: table)
        return Tree(mode, root)

    return tree


NFS_ROOT = "36 27 0:44 / /srv/data rw - nfs4 nas:/export rw"
NFS_BELOW = "37 27 0:45 / /srv/data/far rw - nfs nas:/far rw"
LOCAL_BELOW = "38 36 8:1 / /srv/data/near rw - xfs /dev/sdb1 rw"


def test_a_local_disk_is_watched_and_nothing_is_polled(make):
    tree = make()
    assert not tree.modes.is_event_free
    assert not tree.modes.is_polled(ROOT)
    assert tree.modes.polled() == []
    assert tree.mounts.device(ROOT + b"/a") == "ext4:/dev/vda"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "virtiofs", "ceph", "lustre"])
def test_a_network_file_system_is_polled(make, kind):
    tree = make(f"36 27 0:44 / /srv/data rw - {kind} far:/away rw")
    assert tree.modes.is_event_free
    assert tree.modes.is_polled(ROOT + b"/a/b")
    assert tree.modes.polled() == [ROOT]
    assert tree.mounts.device(ROOT) == f"{kind}:far:/away"


def test_scan_dir_deep_in_a_network_mount_is_polled(make):
    tree = make("36 27 0:44 / /srv rw - nfs4 nas:/export rw")
    assert tree.modes.polled() == [ROOT]


def test_a_network_mount_below_a_local_directory_is_polled_and_the_rest_is_watched(make):
    tree = make(NFS_BELOW)
    assert not tree.modes.is_event_free
    assert not tree.modes.is_polled(ROOT + b"/a")
    assert not tree.modes.is_polled(ROOT + b"/farther")
    assert tree.modes.is_polled(ROOT + b"/far")
    assert tree.modes.is_polled(ROOT + b"/far/a/b")
    assert tree.modes.polled() == [ROOT + b"/far"]


def test_a_local_disk_below_a_network_mount_is_watched(make):
    tree = make(NFS_ROOT, LOCAL_BELOW)
    assert not tree.modes.is_event_free
    assert tree.modes.is_polled(ROOT)
    assert not tree.modes.is_polled(ROOT + b"/near/a")
    assert tree.modes.polled() == [ROOT]


def test_mounts_elsewhere_do_not_matter(make):
    assert (
        make("40 27 0:44 / /srv/database rw - nfs4 nas:/x rw", "41 27 0:46 / /mnt rw - nfs nas:/y rw").modes.polled()
        == []
    )


def test_of_two_mounts_at_one_path_the_upper_one_counts(make):
    over = "37 36 8:2 / /srv/data rw - ext4 /dev/sdc rw"
    assert make(NFS_ROOT, over).modes.polled() == []
    assert make(over.replace("37 36", "36 27"), NFS_ROOT.replace("36 27", "37 36")).modes.polled() == [ROOT]


def test_a_mount_that_another_one_hides_does_not_matter(make):
    above = "39 27 8:2 / /srv/data rw - ext4 /dev/sdc rw"
    tree = make(NFS_BELOW, above)
    assert tree.modes.polled() == []
    assert tree.mounts.device(ROOT + b"/far") == "ext4:/dev/sdc"


def test_a_mount_point_with_spaces_and_unusual_bytes_is_parsed(make):
    assert make(r"36 27 0:44 / /srv/data/my\040files\012\303\251 rw - nfs nas:/ rw").modes.polled() == [
        ROOT + "/my files\né".encode()
    ]


def test_watch_events_polls_nothing(make):
    tree = make(NFS_ROOT, mode="events")
    assert not tree.modes.is_event_free
    assert not tree.modes.is_polled(ROOT)
    assert tree.modes.polled() == []


def test_watch_poll_polls_everything(make):
    tree = make(mode="poll")
    assert tree.modes.is_event_free
    assert tree.modes.is_polled(ROOT)
    assert tree.modes.polled() == [ROOT]


def test_watch_off_neither_watches_nor_polls(make):
    tree = make(NFS_ROOT, mode="off")
    assert tree.modes.is_event_free
    assert tree.modes.polled() == []


@pytest.mark.parametrize("mode", ["auto", "events"])
def test_without_watches_everything_is_polled(make, mode):
    tree = make(mode=mode)
    tree.modes.has_watches = False
    assert tree.modes.is_event_free
    assert tree.modes.is_polled(ROOT + b"/a")
    assert tree.modes.polled() == [ROOT]


def test_a_refresh_notices_volumes_that_come_and_go(make, monkeypatch):
    tree = make()
    assert not tree.mounts.refresh()
    monkeypatch.setattr(status, "read_mountinfo", lambda: SYSTEM + NFS_BELOW.encode())
    assert tree.mounts.refresh()
    assert tree.modes.polled() == [ROOT + b"/far"]
    assert tree.mounts.device(ROOT + b"/far/a") == "nfs:nas:/far"
    monkeypatch.setattr(status, "read_mountinfo", lambda: SYSTEM)
    assert tree.mounts.refresh()
    assert tree.modes.polled() == []
    assert tree.mounts.device(ROOT + b"/far/a") == "ext4:/dev/vda"


def test_two_parts_of_one_disk_are_different_devices(make):
    bound = make("36 27 254:0 /disk/inbox /srv/data rw - ext4 /dev/vda rw")
    assert bound.mounts.device(ROOT) == "ext4:/dev/vda[/disk/inbox]"
    assert bound.mounts.device(ROOT) != make().mounts.device(ROOT)


def test_the_name_of_a_device_has_no_whitespace(make):
    device = make(r"36 27 0:44 / /srv/data rw - cifs //nas/my\040files\012\302\205\342\200\250x rw").mounts.device(ROOT)
    assert device == "cifs://nas/my_files___x"
    assert device.split() == device.splitlines() == [device]


def test_without_a_mount_table_everything_is_local_and_the_device_is_unknown(monkeypatch):
    monkeypatch.setattr(status, "read_mountinfo", lambda: b"")
    tree = Tree("auto", ROOT)
    assert not tree.modes.is_event_free
    assert tree.modes.polled() == []
    assert tree.mounts.device(ROOT) == "?"


def test_a_scan_dir_that_is_a_link_is_on_the_mount_of_its_target(make, tmp_path):
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "in").symlink_to(far)
    root = bytes(tmp_path / "in")
    tree = make(f"36 27 0:44 / {far} rw - nfs nas:/ rw", f"37 36 0:45 / {far}/deep rw - ext4 /dev/sdb rw", root=root)
    assert tree.modes.polled() == [root]
    assert not tree.modes.is_polled(root + b"/deep/x")
    assert tree.modes.is_polled(root + b"/shallow")
