"""A file is opened below its roots: links that stay below them are followed, no others."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.files.beneath import LeadsOutside, NotRegular, open_beneath, open_directory, open_regular


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "a").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").write_bytes(b"other root")
    return tmp_path / "root"


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def content(path: str | Path, *roots: Path) -> bytes:
    fd = open_beneath(os.fsencode(path), [os.fsencode(root) for root in roots])
    try:
        return Path(f"/proc/self/fd/{fd}").read_bytes()
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["sub/a", "sub/../sub/a", "./sub//a", "../root/sub/a"])
def test_a_path_below_the_root_is_opened(path: str, root: Path) -> None:
    assert content(f"{root}/{path}", root) == b"inside"
    assert content(f"{root}/{path}", Path("/")) == b"inside"


@pytest.mark.parametrize("target", ["sub/a", "sub/../sub/a", "../root/sub/a", "{root}/sub/a", "/proc/self/cwd/sub/a"])
def test_a_link_that_stays_below_the_root_is_followed(target: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "link").symlink_to(target.format(root=root))
    (root / "dir").symlink_to(root / "sub")
    assert content(root / "link", root) == content(root / "dir" / "a", root) == b"inside"


@pytest.mark.parametrize("target", ["../secret", "{root}/../secret", "sub/../../secret", "/proc/self/cwd/secret"])
def test_a_link_that_leads_outside_is_refused(target: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    (root / "link").symlink_to(target.format(root=root))
    for directory in (root, root / "sub"):
        (directory / "dir").symlink_to(root.parent)
    (root / "sub" / "link").symlink_to(root.parent / "secret")
    links = (root / "link", root / "dir" / "secret", root / "sub" / "dir" / "secret", root / "sub" / "link")
    for path in (*links, f"{root}/../secret", root):
        with pytest.raises(LeadsOutside):
            content(path, root)


@pytest.mark.parametrize("follows_links", [False, True])
def test_a_root_itself_is_listed_but_nothing_outside_of_it(follows_links: bool, root: Path) -> None:
    (root.parent / "rooted").mkdir()
    (root.parent / "link").symlink_to(root)
    for listed in (root, root.parent / "link"):
        opened = open_directory(os.fsencode(listed), [os.fsencode(listed)], follows_links=follows_links)
        assert os.listdir(opened) == ["sub"]
        os.close(opened)
    for other in (root.parent, root.parent / "rooted"):
        with pytest.raises(LeadsOutside):
            open_directory(os.fsencode(other), [os.fsencode(root)], follows_links=follows_links)


def test_a_link_may_lead_to_another_root_and_a_root_may_be_a_link(root: Path) -> None:
    other, alias = root.parent / "other", root.parent / "alias"
    (root / "link").symlink_to(other / "b")
    alias.symlink_to(root)
    assert content(root / "link", root, other) == b"other root"
    assert content(alias / "sub" / "a", alias) == content(alias / "sub" / "a", root) == b"inside"
    assert content(root / "sub" / "a", alias) == b"inside"


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"-rf", b"x" * 255])
def test_a_name_has_any_bytes_but_a_nul(name: bytes, root: Path) -> None:
    path = os.path.join(os.fsencode(root), name)
    with open(path, "wb"):
        pass
    os.close(open_beneath(path, [os.fsencode(root)]))
    with pytest.raises(ValueError, match="embedded null"):
        open_beneath(path + b"\0", [os.fsencode(root)])


def test_a_pipe_does_not_block_and_a_file_that_cannot_be_read_is_opened(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "sub" / "a").chmod(0)
    for path, kind in (
        (root / "pipe", stat.S_ISFIFO),
        (root / "sub" / "a", stat.S_ISREG),
        (root / "sub", stat.S_ISDIR),
    ):
        fd = open_beneath(os.fsencode(path), [os.fsencode(root)])
        assert kind(os.fstat(fd).st_mode)
        os.close(fd)


@pytest.mark.parametrize(
    ("path", "error"), [("no", FileNotFoundError), ("sub/a/b", NotADirectoryError), ("loop", OSError)]
)
def test_what_cannot_be_opened_is_an_os_error(path: str, error: type[OSError], root: Path) -> None:
    (root / "loop").symlink_to("loop")
    with pytest.raises(error):
        content(root / path, root)


def test_a_link_that_appears_after_the_links_were_resolved_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the links are resolved the path is fine, and a link to the secret when it is opened."""
    resolve = os.path.realpath
    link = root / "link"

    def raced(path: bytes, *, strict: bool = False) -> bytes:
        if b"link" not in path:
            return resolve(path, strict=strict)
        link.unlink(missing_ok=True)
        link.write_bytes(b"")
        resolved = resolve(path, strict=strict)
        link.unlink()
        link.symlink_to(root.parent / "secret")
        return resolved

    monkeypatch.setattr(os.path, "realpath", raced)
    with pytest.raises(OSError, match="keep changing"):
        content(f"{root}//link", root)


def read_regular(path: str | Path | bytes, *roots: Path) -> bytes:
    with open(open_regular(os.fsencode(path), [os.fsencode(root) for root in roots]), "rb") as file:
        return file.read()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"-rf", b"x" * 255])
def test_a_regular_file_below_a_root_is_read(name: bytes, root: Path) -> None:
    path = os.path.join(os.fsencode(root), b"sub", name)
    Path(os.fsdecode(path)).write_bytes(b"inside")
    assert read_regular(path, root) == read_regular(path, root.parent / "other", root) == b"inside"
    (root.parent / "alias").symlink_to(root)
    assert read_regular(root.parent / "alias" / "sub" / "a", root.parent / "alias") == b"inside"


def test_no_link_below_the_root_leads_to_a_file_that_is_read(root: Path) -> None:
    (root / "link").symlink_to("sub/a")
    (root / "dir").symlink_to("sub")
    (root / "out").symlink_to(root.parent)
    for path in ("link", "dir/a", "out/secret", "sub/../sub/a", "sub//a", "./sub/a"):
        with pytest.raises(OSError, match=r"no link is followed|cross-device"):
            read_regular(f"{root}/{path}", root)
    for outside in (f"{root}/../secret", root.parent / "secret", "/proc/self/environ"):
        with pytest.raises((LeadsOutside, OSError)):
            read_regular(outside, root)
    with pytest.raises(ValueError, match="embedded null"):
        read_regular(bytes(root) + b"/sub/a\0", root)


def test_only_a_regular_file_is_read_and_none_is_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    for path in ("pipe", "socket", "sub"):
        with pytest.raises(NotRegular, match="not a regular file"):
            read_regular(root / path, root)
    with pytest.raises(NotRegular):
        read_regular("/dev/zero", Path("/dev"))
    with pytest.raises(FileNotFoundError):
        read_regular(root / "no", root)
