"""Which directories are watched and which are polled, told from mount tables."""

from collections.abc import Callable

import pytest

from fileq.files import mounts as filesystems
from fileq.producer.places import Places

SYSTEM = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
"""
ROOT = b"/srv/data"
Make = Callable[..., Places]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Places of /srv/data, on a machine with these further mounts."""

    def places(*lines: str, mode: str = "auto", root: bytes = ROOT) -> Places:
        table = SYSTEM + "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(filesystems, "read_mountinfo", lambda: table)
        return Places(mode, root)

    return places


NFS_ROOT = "36 27 0:44 / /srv/data rw - nfs4 nas:/export rw"
NFS_BELOW = "37 27 0:45 / /srv/data/far rw - nfs nas:/far rw"
LOCAL_BELOW = "38 36 8:1 / /srv/data/near rw - xfs /dev/sdb1 rw"


def test_a_local_disk_is_watched_and_nothing_is_polled(make):
    places = make()
    assert not places.hears_nothing
    assert not places.is_polled(ROOT)
    assert places.polled() == []
    assert places.device(ROOT + b"/a") == "ext4:/dev/vda"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "virtiofs", "ceph", "lustre"])
def test_a_network_file_system_is_polled_as_a_whole(make, kind):
    places = make(f"36 27 0:44 / /srv/data rw - {kind} far:/away rw")
    assert places.hears_nothing
    assert places.is_polled(ROOT + b"/a/b")
    assert places.polled() == [ROOT]
    assert places.device(ROOT) == f"{kind}:far:/away"


def test_scan_dir_deep_in_a_network_mount_is_polled(make):
    places = make("36 27 0:44 / /srv rw - nfs4 nas:/export rw")
    assert places.polled() == [ROOT]


def test_a_network_mount_below_a_local_directory_is_polled_and_the_rest_is_watched(make):
    places = make(NFS_BELOW)
    assert not places.hears_nothing
    assert not places.is_polled(ROOT + b"/a")
    assert not places.is_polled(ROOT + b"/farther")
    assert places.is_polled(ROOT + b"/far")
    assert places.is_polled(ROOT + b"/far/a/b")
    assert places.polled() == [ROOT + b"/far"]


def test_a_local_disk_below_a_network_mount_is_worth_a_watch(make):
    places = make(NFS_ROOT, LOCAL_BELOW)
    assert not places.hears_nothing
    assert places.is_polled(ROOT)
    assert not places.is_polled(ROOT + b"/near/a")
    assert places.polled() == [ROOT]


def test_mounts_elsewhere_do_not_matter(make):
    assert make("40 27 0:44 / /srv/database rw - nfs4 nas:/x rw", "41 27 0:46 / /mnt rw - nfs nas:/y rw").polled() == []


def test_what_is_mounted_over_another_counts(make):
    over = "37 36 8:2 / /srv/data rw - ext4 /dev/sdc rw"
    assert make(NFS_ROOT, over).polled() == []
    assert make(over.replace("37 36", "36 27"), NFS_ROOT.replace("36 27", "37 36")).polled() == [ROOT]


def test_a_mount_that_is_hidden_by_one_above_it_does_not_matter(make):
    above = "39 27 8:2 / /srv/data rw - ext4 /dev/sdc rw"
    places = make(NFS_BELOW, above)
    assert places.polled() == []
    assert places.device(ROOT + b"/far") == "ext4:/dev/sdc"


def test_a_mount_point_with_blanks_and_odd_bytes_is_understood(make):
    assert make(r"36 27 0:44 / /srv/data/my\040files\012\303\251 rw - nfs nas:/ rw").polled() == [
        ROOT + "/my files\né".encode()
    ]


def test_events_trusts_events_everywhere(make):
    places = make(NFS_ROOT, mode="events")
    assert not places.hears_nothing
    assert not places.is_polled(ROOT)
    assert places.polled() == []


def test_poll_polls_everything(make):
    places = make(mode="poll")
    assert places.hears_nothing
    assert places.is_polled(ROOT)
    assert places.polled() == [ROOT]


def test_off_neither_hears_nor_polls(make):
    places = make(NFS_ROOT, mode="off")
    assert places.hears_nothing
    assert places.polled() == []


@pytest.mark.parametrize("mode", ["auto", "events"])
def test_without_watches_everything_is_polled(make, mode):
    places = make(mode=mode)
    places.poll_everything()
    assert places.hears_nothing
    assert places.is_polled(ROOT + b"/a")
    assert places.polled() == [ROOT]


def test_volumes_that_come_and_go_are_noticed(make, monkeypatch):
    places = make()
    assert not places.refresh()
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: SYSTEM + NFS_BELOW.encode())
    assert places.refresh()
    assert places.polled() == [ROOT + b"/far"]
    assert places.device(ROOT + b"/far/a") == "nfs:nas:/far"
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: SYSTEM)
    assert places.refresh()
    assert places.polled() == []
    assert places.device(ROOT + b"/far/a") == "ext4:/dev/vda"


def test_two_parts_of_one_disk_are_two_devices(make):
    bound = make("36 27 254:0 /disk/inbox /srv/data rw - ext4 /dev/vda rw")
    assert bound.device(ROOT) == "ext4:/dev/vda[/disk/inbox]"
    assert bound.device(ROOT) != make().device(ROOT)


def test_a_device_has_no_blank_and_no_line_break(make):
    device = make(r"36 27 0:44 / /srv/data rw - cifs //nas/my\040files\012\302\205\342\200\250x rw").device(ROOT)
    assert device == "cifs://nas/my_files___x"
    assert device.split() == device.splitlines() == [device]


def test_without_a_mount_table_all_is_local_and_the_device_unknown(monkeypatch):
    monkeypatch.setattr(filesystems, "read_mountinfo", lambda: b"")
    places = Places("auto", ROOT)
    assert not places.hears_nothing
    assert places.polled() == []
    assert places.device(ROOT) == "?"


def test_a_link_as_scan_dir_stands_for_where_it_leads(make, tmp_path):
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "in").symlink_to(far)
    root = bytes(tmp_path / "in")
    places = make(f"36 27 0:44 / {far} rw - nfs nas:/ rw", f"37 36 0:45 / {far}/deep rw - ext4 /dev/sdb rw", root=root)
    assert places.polled() == [root]
    assert not places.is_polled(root + b"/deep/x")
    assert places.is_polled(root + b"/shallow")
