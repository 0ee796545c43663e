"""The pages of dead jobs and of files, and the requests behind their buttons."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec import to_builtins

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Entry
from fileq.core.api_key import Scope
from fileq.core.delivery import CHECK_TYPE, DeliveryCheck, problem_of, with_others
from fileq.core.job import Version, file_job, typed_job
from fileq.files.status import signature_of
from fileq.server.routes import ROUTES
from fileq.testing.conformance.builders import worker_info
from tests.support.api_client import ServedApi, served_api
from tests.support.dead_jobs import bury
from tests.support.waiting import wait_until

DIRECTORY = os.fsdecode(b"in \xfe")
HOSTILE = os.fsdecode(b"{{7*7}} <b>\xff.txt")
NOT_ASKED = {"/config", "/events", "/ws", "/files", "/files/trace", "/files/tree", "/files/content"}
SHOWN = "{{7*7}} &lt;b&gt;\\xff.txt"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    top = tmp_path_factory.mktemp("pages")
    with served_api(top, {"server": {"files": "preview", "upload_dir": str(top)}}) as served:
        yield served


def page(api: ServedApi, path: str) -> str:
    reply = api.client.send("GET", f"/dashboard/{path}".replace("/?", "?"))
    assert reply.status == 200, reply.body
    return reply.body.decode()


def add_file(api: ServedApi, name: str, content: bytes) -> str:
    """Writes a file and enqueues it as a producer does. Returns its path."""
    path = Path(api.config.producer.scan_dir) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    raw, signature = os.fsencode(path), signature_of(path.stat())
    job = file_job(raw, size=len(content), priority="low", now=datetime.now(UTC), signature=signature)
    api.broker.enqueue([Entry(job, "low", Version(raw, signature))])
    return str(path)


def test_a_group_is_acknowledged_comes_back_and_is_forgotten(api: ServedApi) -> None:
    bury(api.broker, 3)
    [group] = api.client.get("/dead/groups")["groups"]
    assert sum(group["timeline"]) == 3
    target = f"/dead/groups/{group['fingerprint']}/acknowledgement"
    assert api.client_with(Scope.READ).call("PUT", target, {"note": "x"}).slug == "forbidden"
    operator = api.client_with(Scope.OPERATE, name="olga")
    made = operator.call("PUT", target, {"note": "the <i>scanner</i>\nin hall 3"})
    assert (made.json["by"], api.client.get("/dead/acknowledgements")["acknowledgements"]) == ("olga", [made.json])
    text = page(api, "dead")
    assert "state acknowledged" in text
    assert "the &lt;i&gt;scanner&lt;/i&gt;\nin hall 3" in text
    bury(api.broker, 1)
    assert "state again" in page(api, "dead")
    assert "state acknowledged" not in page(api, "dead?by=kind")
    wait_until(lambda: ("olga", "put_acknowledgement") in audited(api), 10.0)
    assert [operator.delete(target).status for _ in range(2)] == [200, 404]
    assert "state again" not in page(api, "dead")
    for wrong in ("nonsense", group["fingerprint"][:4], group["fingerprint"].upper() + "0"):
        assert operator.call("PUT", f"/dead/groups/{wrong}/acknowledgement", {}).slug == "not-found"
    assert operator.call("PUT", target, {"note": "x" * 1001}).slug == "invalid"


def audited(api: ServedApi) -> list[tuple[str, str]]:
    return [(one["who"], one["action"]) for one in api.client.get("/audit")["entries"]]


def test_the_page_of_a_group_shows_its_probe_and_its_jobs(api: ServedApi) -> None:
    bury(api.broker, 2, type="mail", error="OSError: disk {n} is full")
    [group] = api.client.get("/dead/groups?type=mail")["groups"]
    address = f"dead?fingerprint={group['fingerprint']}&probe={group['sample_id']}"
    assert "Died again" in page(api, address)
    assert f'data-action="POST /jobs/{group["sample_id"]}/retry?probe=true"' in page(api, "dead?type=mail")
    assert api.client.post(f"/jobs/{group['sample_id']}/retry?probe=true").status == 200
    wait_until(lambda: "as a probe" in [one.get("detail") for one in api.client.get("/audit")["entries"]], 10.0)
    text = page(api, address)
    assert "data-unsettled" in text
    assert "1 job</strong>" in text, "the probe has left the group"
    assert "No dead jobs match" in page(api, "dead?type=nothing")
    assert "data-unsettled" not in page(api, f"dead?fingerprint={group['fingerprint']}&probe=unknown")
    bury(api.broker)


def test_a_hostile_file_is_listed_shown_and_reprocessed(api: ServedApi) -> None:
    path = add_file(api, f"{DIRECTORY}/{HOSTILE}", b"<script>alert(1)</script>\n")
    add_file(api, f"{DIRECTORY}/other.bin", b"\x00\x01\xff")
    bury(api.broker)
    directory = os.fsencode(os.path.dirname(path)).decode(errors="backslashreplace")  # as answers show it
    assert SHOWN in page(api, f"files?under={quote(directory)}&status=dead")
    assert "other.bin" in page(api, "files"), "the directory that is watched"
    assert "No files match" in page(api, "files?match=*.nothing")
    shown = api.client.get(f"/files?under={quote(directory)}&match=*.txt")["files"][0]["path"]
    text = page(api, f"files/trace?path={quote(shown)}")
    assert f"<h1>{SHOWN}</h1>" in text
    assert '<pre class="content" tabindex="0">&lt;script&gt;alert(1)&lt;/script&gt;' in text
    assert "00 01 ff" in page(api, f"files/trace?path={quote(directory)}/other.bin")
    assert 'id="preview"' not in reader_page(api, f"files/trace?path={quote(shown)}"), "needs the scope files"

    def reprocess(**order: object) -> int:
        reply = api.client.post("/files/reprocess", order)
        assert reply.status == 200, reply.body
        return int(reply.json["enqueued"])

    assert [reprocess(path=shown), reprocess(under=directory), reprocess(under="/nothing")] == [1, 2, 0]
    assert reprocess(path=shown, dry_run=False, expect=1) == 1
    assert reprocess(path=shown) == 0, "its job has not ended"
    assert api.client.post("/files/reprocess", {"path": shown, "under": directory}).slug == "invalid"


def reader_page(api: ServedApi, path: str) -> str:
    return api.client_with(Scope.READ, name="reader").send("GET", f"/dashboard/{path}").body.decode()


def test_a_server_that_hides_paths_hides_them_in_answers_and_on_pages(tmp_path: Path) -> None:
    with served_api(tmp_path, {"server": {"files": "none"}}) as api:
        broker, client = api.broker, api.client
        path = add_file(api, "hushed.txt", b"x")
        bury(broker, error=f"ValueError: {path} is bad")
        broker.create_batch(NewBatch("delivery-1", name="/in/hushed", is_own=True))
        check = DeliveryCheck("/in/hushed", "/in/hushed/a.pdf", also=("missing: /in/hushed/b.pdf is in",))
        job = typed_job(CHECK_TYPE, to_builtins(check), priority="low", now=datetime.now(UTC), id="check-1")
        broker.enqueue([Entry(job.but(batch_id="delivery-1"), "low", joins=True, is_own=True, fills_delivery=True)])
        bury(broker, error=with_others(problem_of(check, None, ""), check))
        client.call("PUT", "/schedules/s", {"cron": "0 3 * * *", "scan": "/in/hushed"}, {"If-None-Match": "*"})
        add_file(api, "hushed 2.txt", b"x")
        broker.register({"slot": worker_info(lost_roots=("/in/hushed is missing",))})
        broker.settle_and_claim((), ["slot"])
        groups = client.get("/dead/groups")["groups"]
        assert len(groups) == 2
        lists = {route.path for route in ROUTES if route.method == "GET" and "{" not in route.path} - NOT_ASKED
        jobs = ("/jobs/check-1", "/batches/delivery-1", "/batches/delivery-1/dead", "/schedules/s", "/dead?q=check")
        for address in (*lists, *jobs, *(f"/jobs/{group['sample_id']}" for group in groups)):
            assert b"hushed" not in client.call("GET", address).body, address
        for condition in ("q=hushed", "error=hushed"):
            assert client.get(f"/dead?{condition}")["jobs"] == []
        pages = ["?hours=7d", "dead", "dead?by=kind", "jobs", "workers", "scheduled", "batches", "batches/delivery-1"]
        pages += [f"dead?fingerprint={group['fingerprint']}" for group in groups]
        for address in (*pages, "jobs/check-1", *(f"jobs/{group['sample_id']}" for group in groups)):
            assert "hushed" not in page(api, address), address
        assert client.send("GET", "/dashboard/files").status == 403
