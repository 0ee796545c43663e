"""Uploads: what arrives, what is refused, what a cut upload leaves, and that an uploaded file becomes one job."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fileq.core.api_key import Scope
from fileq.core.events import UploadsRemoved
from fileq.files.uploads import ArrivingFile, remove_abandoned
from fileq.server import services
from fileq.server.api.file_endpoints import DEPTH
from tests.support.api_client import ADMIN_KEY, API, ApiClient, Reply, ServedApi, check_described, served_api
from tests.support.deep_tree import nested
from tests.support.program import Program
from tests.support.waiting import wait_until

MOST = 8 << 20


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    directory = tmp_path_factory.mktemp("uploads")
    (directory / "in").mkdir()
    with served_api(directory, {"server": {"upload_dir": str(directory / "in"), "max_upload": "8MB"}}) as served:
        yield served


def put(client: ApiClient, path: str, body: bytes, **headers: str) -> Reply:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = client.send("PUT", f"{API}/uploads/{path}", body, given)
    check_described("PUT", f"/uploads/{path}", reply)
    return reply


def files_in(api: ServedApi) -> list[str]:
    top = Path(api.config.server.upload_dir)
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def digest_of(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def test_a_file_is_stored_with_its_directories_replaced_and_protected(api: ServedApi) -> None:
    body = os.urandom(3 << 20)
    made = put(api.client, "2026/a%20b.bin", body, Content_Digest=digest_of(body), If_None_Match="*")
    stored = Path(api.config.server.upload_dir, "2026", "a b.bin")
    assert (made.status, made.json["path"], made.json["size"]) == (201, str(stored), len(body))
    assert made.json["sha256"] == hashlib.sha256(body).hexdigest()
    assert stored.read_bytes() == body
    assert put(api.client, "2026/a%20b.bin", b"new", If_None_Match="*").slug == "precondition-failed"
    again = put(api.client, "2026/a%20b.bin", b"new")
    assert (again.status, again.json["is_new"], stored.read_bytes()) == (200, False, b"new")
    assert put(api.client, "empty", b"").json["size"] == 0
    paths = wait_until(lambda: [one["path"] for one in api.client.get("/audit")["entries"] if one.get("path")], 10.0)
    assert str(stored) in paths, "the audit leads to the file"


def test_what_is_refused_leaves_nothing(api: ServedApi, tmp_path: Path) -> None:
    top = Path(api.config.server.upload_dir)
    (top / "out").symlink_to(tmp_path)
    before = files_in(api)
    for path in ("../x", "a/../../x", "%2e%2e/x", "a//b", ".fileq-x.tmp", "a%00b", "a%0Ab", "x" * 300, "%ff"):
        assert put(api.client, path, b"x").slug == "invalid", path
    assert put(api.client, "out/x", b"x").slug == "conflict", "no link is followed"
    assert put(api.client, "new/deep/x", b"x", Content_Digest=digest_of(b"y")).slug == "digest-mismatch"
    assert put(api.client, "new/x", b"x", Content_Digest="md5=:eA==:").slug == "invalid"
    assert put(api.client, "new/x", b"x", Content_Digest="nonsense").slug == "invalid"
    assert put(api.client, "new/x", b"x", Content_Length=str(MOST + 1)).slug == "too-large"
    below = api.client_with(Scope.ENQUEUE, name="below", path_prefix=str(top / "mine"))
    assert put(below, "other/x", b"x").slug == "not-allowed"
    assert put(api.client_with(Scope.READ), "x", b"x").slug == "forbidden"
    assert files_in(api) == before
    assert list(tmp_path.iterdir()) == []
    assert put(below, "mine/x", b"x").status == 201


def test_the_client_of_a_refused_upload_reads_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: a client that sends its whole file before it reads got a broken pipe instead of 503. One that asks first,
    with Expect, sends nothing."""
    monkeypatch.setattr(services, "TRANSFERS_OF_ONE", 0)
    with served_api(tmp_path, {"server": {"upload_dir": str(tmp_path)}}) as api:
        refused = put(api.client, "x", b"x" * (6 << 20))
        assert (refused.slug, refused.headers["connection"]) == ("busy", "close")
        expecting = {"Expect": "100-continue", "Content-Length": "1000", "X-API-Key": ADMIN_KEY}
        connection = http.client.HTTPConnection("127.0.0.1", api.client.port, timeout=30)
        with closing(connection):
            connection.request("PUT", f"{API}/uploads/x", headers=expecting)
            assert connection.getresponse().status == 503


def test_a_part_of_a_file_or_a_compressed_one_is_refused(api: ServedApi) -> None:
    """N5: the last bytes of a file, sent with Content-Range, were stored as the whole file."""
    before = files_in(api)
    assert put(api.client, "part", b"TAIL", Content_Range="bytes 100-103/104").status == 400
    assert put(api.client, "packed", b"x", Content_Encoding="gzip").status == 415
    assert files_in(api) == before
    assert put(api.client, "plain", b"x", Content_Encoding="identity").status == 201


def test_a_body_without_a_length_is_cut_at_the_limit(api: ServedApi) -> None:
    before = files_in(api)
    connection = http.client.HTTPConnection("127.0.0.1", api.client.port, timeout=30)
    parts = (b"x" * (1 << 20) for _ in range(9))
    connection.request(
        "PUT",
        f"{API}/uploads/endless",
        parts,
        {"X-API-Key": ADMIN_KEY, "Transfer-Encoding": "chunked"},
        encode_chunked=True,
    )
    assert connection.getresponse().status == 413
    connection.close()
    assert files_in(api) == before


def test_a_cut_upload_leaves_nothing(api: ServedApi) -> None:
    before = files_in(api)
    connection = http.client.HTTPConnection("127.0.0.1", api.client.port, timeout=30)
    connection.putrequest("PUT", f"{API}/uploads/cut/off.bin")
    connection.putheader("X-API-Key", ADMIN_KEY)
    connection.putheader("Content-Length", str(4 << 20))
    connection.endheaders(b"x" * (2 << 20))
    wait_until(lambda: len(files_in(api)) > len(before), what="a part is on the disk")
    connection.close()
    wait_until(lambda: files_in(api) == before)


def test_what_a_killed_server_left_is_removed_by_the_next(tmp_path: Path) -> None:
    below = tmp_path / "in" / "x"
    below.mkdir(parents=True)
    names = [f".fileq-upload{n}.tmp" for n in ("left", "older", "fresh")] + [".fileq-other.tmp", "upload.tmp"]
    for name in names:
        (below / name).write_bytes(b"part")
        os.utime(below / name, (1, 1))
    (below / ".fileq-uploadfresh.tmp").write_bytes(b"part")
    arriving = ArrivingFile(os.fsencode(tmp_path), b"in/x/y")
    arriving.open()
    [new] = set(os.listdir(below)) - set(names)
    os.utime(below / new, (1, 1))
    with served_api(tmp_path, {"server": {"upload_dir": str(tmp_path / "in")}}) as api:
        wait_until(lambda: UploadsRemoved(2, api.config.server.upload_dir) in api.events)
    assert sorted(os.listdir(below)) == sorted([".fileq-uploadfresh.tmp", ".fileq-other.tmp", "upload.tmp", new])
    arriving.discard()
    assert new not in os.listdir(below)


def test_nested_directories_do_not_stop_the_removal(tmp_path: Path) -> None:
    """Medium: 1,480 nested directories ended the sweep of abandoned uploads; a link in the tree is not followed."""
    top, outside = tmp_path / "in", tmp_path / "outside"
    outside.mkdir()
    top.mkdir()
    for directory in (top, outside):
        (directory / ".fileq-uploadleft.tmp").write_bytes(b"part")
        os.utime(directory / ".fileq-uploadleft.tmp", (1, 1))
    (top / "link").symlink_to(outside)
    with nested(top / "a", 1480, ".fileq-uploaddeep.tmp"), nested(top / "z", 1480):
        assert remove_abandoned(bytes(top), time.time()) == 1
    assert os.listdir(outside) == [".fileq-uploadleft.tmp"]


def test_an_upload_is_no_deeper_than_producers_look(api: ServedApi) -> None:
    """H1 and medium: `PUT /uploads/a/a/a/…` made a tree that was too deep for the sweep and the matcher."""
    before = files_in(api)
    deep = put(api.client, "/".join("a" * (DEPTH + 1)), b"x")
    assert (deep.slug, deep.status) == ("invalid", 422)
    assert files_in(api) == before
    assert put(api.client, "/".join("a" * DEPTH), b"x").status == 201


def test_without_a_directory_there_are_no_uploads(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        assert put(api.client, "x", b"x").slug == "not-found"


def test_an_uploaded_file_becomes_one_job(tmp_path: Path) -> None:
    top = tmp_path / "data"
    top.mkdir()
    settings = {
        "broker": "sqlite",
        "sqlite.path": tmp_path / "queue.db",
        "server.port": 0,
        "server.api_key": ADMIN_KEY,
        "server.upload_dir": top / "in",
        "producer.settle": "100ms",
        "producer.settle_unclosed": "100ms",
    }
    (top / "in").mkdir()
    with Program("start", str(top), cwd=tmp_path, settings=settings) as program:
        client = ApiClient(int(program.wait_for("server.opened")["url"].rpartition(":")[2]), ADMIN_KEY)
        body = os.urandom(MOST)
        assert put(client, "x/big.bin", body, Content_Digest=digest_of(body)).status == 201
        done = program.wait_for("job.completed")
        assert done["filepath"] == str(top / "in" / "x" / "big.bin")
        assert put(client, "x/small.bin", b"x").status == 201
        program.wait_for("job.completed", count=2)
        assert program.stop() == 0
        assert len(program.events("job.produced")) == 2


def test_an_upload_does_not_replace_a_link(api: ServedApi, tmp_path: Path) -> None:
    """L7: a link that another program had put below upload_dir was replaced by the upload."""
    target, link = tmp_path / "target", Path(api.config.server.upload_dir) / "current"
    target.write_bytes(b"old")
    link.symlink_to(target)
    before = files_in(api)
    refused = put(api.client, "current", b"new")
    assert (refused.slug, "is a link" in refused.json["detail"]) == ("conflict", True)
    assert (link.is_symlink(), target.read_bytes(), files_in(api)) == (True, b"old", before)
    link.unlink()
