"""Files over the REST API: lists, the tree, a trace, reprocessing, and which contents are shown, and how."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from fileq.brokers.types import CancelResult
from fileq.core.api_key import Scope
from tests.support.api_client import API, Reply, ServedApi, served_api

CONTENTS = {
    "a/one.txt": b"plain text\n",
    "a/page.html": b"<script>alert(1)</script>",
    "a/b/two.png": b"\x89PNG\r\n\x1a\n123",
    "c/three.bin": bytes(range(256)) * 2000,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    top = tmp_path_factory.mktemp("files")
    with served_api(top, {"server": {"files": "download"}}) as served:
        for name, content in CONTENTS.items():
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            assert served.client.post("/jobs", {"path": str(path)}).status == 201
        yield served


def top_of(api: ServedApi) -> str:
    return api.config.producer.scan_dir


def paths(reply: dict[str, list[dict[str, str]]], top: str) -> list[str]:
    return sorted(file["path"].removeprefix(f"{top}/") for file in reply["files"])


def content(api: ServedApi, path: str, **query: str) -> Reply:
    return api.client.call("GET", f"/files/content?{urlencode({'path': path, **query})}")


def test_files_are_listed_by_directory_glob_and_status_and_by_pages(api: ServedApi) -> None:
    top = top_of(api)
    everything = api.client.get(f"/files?under={quote(top)}")
    assert paths(everything, top) == sorted(CONTENTS)
    assert (everything["total"], everything["is_partial"], everything["next_cursor"]) == (4, False, "")
    [file] = [one for one in everything["files"] if one["path"].endswith("one.txt")]
    assert (file["status"], file["size"], file["versions"]) == ("pending", 11, 1)
    assert paths(api.client.get(f"/files?under={quote(top)}/a&match=*.txt"), top) == ["a/one.txt"]
    assert api.client.get("/files?status=dead")["files"] == []
    assert api.client.get("/files?under=/nothing")["files"] == []
    found, cursor = list[str](), ""
    while True:
        page = api.client.get(f"/files?limit=1&cursor={cursor}")
        found += paths(page, top)
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert sorted(found) == sorted(CONTENTS)
    first = api.client.get("/files?limit=1")["next_cursor"]
    assert api.client.call("GET", f"/files?limit=1&match=*&cursor={first}").slug == "invalid"
    assert api.client.call("GET", "/files?status=lost").slug == "invalid"


def test_the_tree_counts_by_directory(api: ServedApi) -> None:
    top = top_of(api)
    tree = api.client.get(f"/files/tree?under={quote(top)}&depth=2")
    counts = {one["directory"].removeprefix(top): (one["files"], one["waiting"]) for one in tree["directories"]}
    assert counts == {"": (4, 4), "/a": (3, 3), "/a/b": (1, 1), "/c": (1, 1)}
    assert not tree["is_partial"]
    assert all(one["oldest_unprocessed_at"] <= one["last_arrival_at"] for one in tree["directories"])
    assert len(api.client.get(f"/files/tree?under={quote(top)}&depth=0")["directories"]) == 1


def test_a_trace_has_the_jobs_of_a_file(api: ServedApi) -> None:
    path = f"{top_of(api)}/a/one.txt"
    traced = api.client.get(f"/files/trace?path={quote(path)}")
    [version] = traced["versions"]
    assert (version["is_newest"], version["job"]["path"]) == (True, path)
    assert api.client.call("GET", "/files/trace?path=/nothing").slug == "not-found"
    assert api.client.call("GET", "/files/trace").slug == "invalid"


def test_reprocessing_is_a_dry_run_first_and_expects_a_number(api: ServedApi) -> None:
    path = f"{top_of(api)}/c/three.bin"
    [file] = api.client.get("/files?match=three.bin")["files"]
    assert api.broker.cancel([file["job_id"]]) == [CancelResult.CANCELLED]
    [tree] = api.client.get(f"/files/tree?under={quote(top_of(api))}&depth=0")["directories"]
    assert (tree["files"], tree["waiting"], tree["cancelled"]) == (4, 3, 1)
    order = {"match": "*.bin"}
    planned = api.client.post("/files/reprocess", order)
    assert (planned.json["is_dry_run"], planned.json["enqueued"]) == (True, 1)
    assert api.client.post("/files/reprocess", {**order, "dry_run": False}).slug == "invalid"
    assert api.client.post("/files/reprocess", {**order, "dry_run": False, "expect": 0}).slug == "count-changed"
    assert api.client.post("/files/reprocess", {}).slug == "invalid"
    done = api.client.post("/files/reprocess", {**order, "dry_run": False, "expect": 1}).json
    assert (done["enqueued"], done["files"][0]["path"]) == (1, path)
    again = api.client.post("/files/reprocess", {**order, "dry_run": False, "expect": 1}).json
    assert (again["enqueued"], again["unfinished"]) == (0, 1)


def test_contents_are_sent_so_that_a_browser_runs_none(api: ServedApi) -> None:
    top = top_of(api)
    wanted = {"a/one.txt": "text/plain", "a/page.html": "text/plain", "a/b/two.png": "image/png"}
    for name, kind in {**wanted, "c/three.bin": "application/octet-stream"}.items():
        reply = content(api, f"{top}/{name}")
        assert (reply.status, reply.body) == (200, CONTENTS[name]), name
        assert reply.headers["content-type"].partition(";")[0] == kind
        assert reply.headers["content-disposition"].startswith("inline" if name in wanted else "attachment")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-security-policy"].startswith("sandbox;")
    assert api.client_with(Scope.OPERATE).call("GET", f"/files/content?path={quote(top)}/a/one.txt").slug == "forbidden"
    assert api.client.send("HEAD", f"{API}/files/content?path={quote(top)}/a/one.txt").status == 200


def test_only_known_unchanged_files_below_the_roots_are_shown(api: ServedApi, tmp_path: Path) -> None:
    top = Path(top_of(api))
    assert content(api, "/etc/passwd").slug == "not-found"
    (top / "unknown.txt").write_text("x")
    assert content(api, str(top / "unknown.txt")).slug == "not-found"
    assert content(api, f"{top}/a/../a/one.txt").slug == "not-found"
    for name in ("late.txt", "linked/in.txt"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text("known")
        assert api.client.post("/jobs", {"path": str(top / name)}).status == 201
        assert content(api, str(top / name)).status == 200
    (top / "late.txt").write_text("changed since")
    assert content(api, str(top / "late.txt")).slug == "conflict"
    (top / "late.txt").unlink()
    assert content(api, str(top / "late.txt")).slug == "not-found"
    os.rename(top / "linked", tmp_path / "linked")
    (top / "linked").symlink_to(tmp_path / "linked")
    assert content(api, str(top / "linked" / "in.txt")).slug == "not-found", "the same file, but through a link"


def test_a_preview_shows_texts_and_images_and_names_alone_show_no_content(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "a.txt").write_bytes(b"x" * (2 << 20))
    for files in ("preview", "names", "none"):
        with served_api(tmp_path, {"server": {"files": files}}) as api:
            for name in ("a.bin", "a.txt"):
                api.client.post("/jobs", {"path": str(tmp_path / name)})
            text = content(api, str(tmp_path / "a.txt"))
            assert content(api, str(tmp_path / "a.bin")).slug == "not-allowed"
            if files == "preview":
                assert (len(text.body), text.headers["x-fileq-cut"]) == (1 << 20, "true")
            else:
                assert text.slug == "not-allowed"
            listed = api.client.call("GET", "/files")
            assert listed.slug == ("not-allowed" if files == "none" else "")
