"""The endpoints of jobs, stats and keys, as a client of the REST API sees them."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import fileq
from fileq.commands.audit_entries import (
    AUDIT,
    AUDIT_REFUSED,
    DOCUMENT_ENTRIES_MAX,
    AuditChange,
    AuditEntry,
    audit_page,
)
from fileq.core.api_key import Scope
from fileq.core.job import decode
from fileq.server.services import JobWaits
from tests.support.api_client import ADMIN_KEY, ServedApi, served_api
from tests.support.servers.server import Server
from tests.support.waiting import wait_until

REFUSED = AuditEntry("2026-05-01T12:00:00.000Z", "a key", "id", "resume_queue", "/queues/low/resume", 1, 403, "r")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("jobs")) as served:
        yield served


def test_a_job_is_enqueued_shown_cancelled_and_audited(api: ServedApi) -> None:
    made = api.client.post("/jobs", {"type": "report", "payload": {"day": 1}, "priority": "high", "tags": {"a": "b"}})
    assert made.status == 201
    job = made.json
    assert made.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert (job["type"], job["status"], job["priority"]) == ("report", "pending", "high")
    reply = api.client.call("GET", f"/jobs/{job['id']}")
    assert reply.json["payload"] == {"day": 1}
    assert reply.json["waits_for"] == ["no worker is running"]
    same = api.client.call("GET", f"/jobs/{job['id']}", headers={"If-None-Match": reply.headers["etag"]})
    assert (same.status, same.body) == (304, b"")
    assert api.client.post(f"/jobs/{job['id']}/retry").slug == "conflict"
    for result in ("cancelled", "ended"):
        gone = api.client.delete(f"/jobs/{job['id']}")
        assert (gone.status, gone.json) == (200, {"message": "Job cancelled", "result": result})
    assert api.client.delete("/jobs/unknown").slug == "not-found"

    def entries() -> list[AuditEntry]:
        return [one for one in audit_page(api.broker, 100)[0] if one.target == f"/jobs/{job['id']}"]

    again, first = wait_until(lambda: entries()[1:] and entries())
    assert (again.action, first.action) == ("cancel_job", "cancel_job")
    assert (again.changes, first.changes) == ((), (AuditChange("status", "pending", "cancelled"),))


def test_what_was_done_and_what_was_refused_is_one_list_newest_first(tmp_path: Path) -> None:
    def entry(second: int, result: int) -> AuditEntry:
        return replace(REFUSED, at=f"2026-05-01T12:00:{second:02}.000Z", result=result)

    with served_api(tmp_path) as api:
        # As a server writes a burst: each list at once, with the time of the end.
        AUDIT.put(api.broker, "1777636800000-b", [entry(second, 200) for second in (1, 3, 5)])
        AUDIT_REFUSED.put(api.broker, "1777636800000-a", [entry(second, 403) for second in (2, 4)])
        expected = [entry(second, 403 if second % 2 == 0 else 200) for second in (5, 4, 3, 2, 1)]
        assert audit_page(api.broker, 10) == (expected, None)
        paged, after = list[AuditEntry](), None
        for _ in expected:
            page, after = audit_page(api.broker, 1, after)
            paged += page
        assert paged == expected
        assert audit_page(api.broker, 1, after) == ([], None)


def test_a_new_job_is_answered_as_it_was_enqueued_whatever_has_become_of_it_since(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may have completed it meanwhile, and with worker.completed_max 0 its record is gone then."""
    with monkeypatch.context() as patched:
        patched.setattr(type(api.broker), "records", lambda self, ids: [None] * len(ids))
        made = api.client.post("/jobs", {"type": "fast"})
    assert (made.status, made.json["status"], made.json["type"]) == (201, "pending", "fast")


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "one", "payload": {"a": 1}, "tags": {"team": "x"}, "unique_key": "u", "max_retries": 2},
        {"type": "one", "delay": "5m", "priority": "high"},
        {"type": "one", "scheduled_at": "2999-01-01T00:00:00Z", "deadline": "2999-01-02T00:00:00Z"},
        {"type": "one", "scheduled_at": "2000-01-01T00:00:00Z"},
    ],
)
def test_the_answer_to_a_new_job_is_what_the_broker_says_of_it(api: ServedApi, wanted: dict[str, Any]) -> None:
    made = api.client.post("/jobs", wanted).json
    read = api.client.get(f"/jobs/{made['id']}")
    assert {**made, "waits_for": read["waits_for"]} == {**read, "warning": made["warning"]}


def test_a_delayed_job_is_scheduled_and_stats_count_it(api: ServedApi) -> None:
    before = api.client.get("/stats")
    assert api.client.post("/jobs", {"type": "later", "delay": "5m"}).json["status"] == "scheduled"
    stats = api.client.get("/stats")
    assert stats["scheduled"] == before["scheduled"] + 1
    assert (stats["active_workers"], stats["jobs_today"]) == (0, {"processed": 0, "failed": 0})
    assert set(stats["queues"]) == {"high", "low"}


def test_everything_that_is_wrong_is_reported_at_once(api: ServedApi) -> None:
    reply = api.client.post("/jobs", {"tpye": "x", "max_retries": -1, "tags": 3, "delay": 1e300})
    assert reply.slug == "invalid"
    found = {one["pointer"]: one["detail"] for one in reply.json["errors"]}
    assert set(found) == {"/tpye", "/max_retries", "/tags", "/delay"}
    assert found["/tpye"] == '"tpye" is unknown; did you mean type?'
    [timed] = api.client.post("/jobs", {"type": "x", "at": "2999-01-01T00:00:00Z"}).json["errors"]
    assert timed["detail"] == '"at" is unknown; did you mean scheduled_at?'
    assert api.client.post("/jobs", b"{").slug == "malformed-request"
    assert api.client.post("/jobs", [1]).slug == "invalid"
    assert api.client.post("/jobs", {}).slug == "invalid"
    assert api.client.post("/jobs", {"type": "x", "priority": "urgent"}).slug == "invalid"
    assert api.client.post("/jobs", {"type": "x"}, {"Content-Type": "text/plain"}).slug == "unsupported-media-type"
    assert api.client.post("/jobs", b" " * (2 << 20)).slug == "too-large"
    assert api.client.call("GET", "/stats", headers={"Accept": "text/html"}).slug == "not-acceptable"
    assert api.client.call("GET", "/stats?hours=3").slug == "invalid"
    assert api.client.call("GET", "/jobs/x/wait?timeout=1e9").slug == "invalid"
    assert api.client.call("PUT", "/jobs/x").headers["allow"] == "DELETE, GET, HEAD"
    assert api.client.call("GET", "/nothing").slug == "not-found"


def test_every_timeout_that_is_accepted_makes_a_job_that_can_be_read(api: ServedApi) -> None:
    """A1: 2e9 seconds were accepted, and the job was lost at its claim."""
    for timeout, seconds in ((2e9, 2e9), ("30000d", 30_000 * 86_400), (36_500 * 86_400, 36_500 * 86_400)):
        made = api.client.post("/jobs", {"type": "noop", "timeout": timeout})
        [record] = api.broker.records([made.json["id"]])
        assert record is not None
        assert (made.status, decode(record.raw).timeout) == (201, seconds)
    assert api.client.post("/jobs", {"type": "noop", "timeout": 4e9}).slug == "invalid"


def test_a_payload_that_is_nested_too_deeply_is_refused_wherever_it_is_given(api: ServedApi) -> None:
    """A4: a page or an answer that shows it grows with its depth."""
    deep: Any = 1
    for _ in range(65):
        deep = [deep]
    schedule = {"cron": "@daily", "type": "noop"}
    for reply in (
        api.client.post("/jobs", {"type": "noop", "payload": deep}),
        api.client.post("/jobs/bulk", {"jobs": [{"type": "noop", "payload": deep}]}),
        api.client.post("/batches", {"id": "deep", "then": {"type": "noop", "payload": {"deep": deep}}}),
        api.client.call("PUT", "/schedules/deep", {**schedule, "payload": {"deep": deep}}),
    ):
        assert (reply.slug, "more than 64 nested lists and objects" in reply.json["detail"]) == ("invalid", True), reply
    assert api.client.post("/jobs", {"type": "noop", "payload": deep[0]}).status == 201


def test_an_idempotency_key_makes_one_job_and_refuses_another_body(api: ServedApi) -> None:
    key = {"Idempotency-Key": "order-17"}
    first = api.client.post("/jobs", {"type": "order", "payload": {"n": 1}}, key)
    again = api.client.post("/jobs", b'{"payload": {"n": 1}, "type":"order"}', key)
    assert (first.status, again.status) == (201, 201)
    assert first.json["id"] == again.json["id"]
    assert api.client.post("/jobs", {"type": "order", "payload": {"n": 2}}, key).slug == "idempotency-mismatch"
    other = api.client_with(Scope.ENQUEUE, name="other").post("/jobs", {"type": "order", "payload": {"n": 2}}, key)
    assert other.status == 201, "another caller may use the same key"
    known = api.client.post("/jobs", {"type": "order", "id": first.json["id"]})
    assert (known.status, known.json["id"]) == (200, first.json["id"])


def test_the_id_of_an_idempotency_key_can_not_be_computed_by_others(api: ServedApi) -> None:
    """A3: a job with the hash of another caller and its key as its id made that caller's request fail."""
    digest = hashlib.sha256(b"outside\0order-18").digest()
    api.client.post("/jobs", {"type": "plant", "id": str(uuid.UUID(bytes=digest[:16], version=4))})
    made = api.client.post("/jobs", {"type": "order"}, {"Idempotency-Key": "order-18"})
    assert (made.status, made.json["type"]) == (201, "order")


def test_a_key_enqueues_only_its_types_and_files(api: ServedApi, tmp_path: Path) -> None:
    typed = api.client_with(Scope.ENQUEUE, name="typed", allowed_types=("ocr",))
    made = typed.post("/jobs", {"type": "ocr"})
    assert made.status == 201
    assert typed.get(f"/jobs/{made.json['id']}")["type"] == "ocr"
    for body in ({"type": "x"}, {"command": "ls"}, {"path": str(tmp_path / "a")}):
        assert typed.post("/jobs", body).slug == "not-allowed", body
    below = api.client_with(Scope.ENQUEUE, name="below", path_prefix=str(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("/etc/passwd")
    for path in ("/etc/passwd", f"{tmp_path}/in/link", f"{tmp_path}/inside"):
        assert below.post("/jobs", {"path": path}).slug == "not-allowed", path
    assert below.post("/jobs", {"path": f"{tmp_path}/in/../x"}).slug == "invalid"


def test_waiting_returns_when_the_job_ends(api: ServedApi) -> None:
    id = api.client.post("/jobs", {"type": "slow"}).json["id"]
    assert api.client.call("GET", f"/jobs/{id}/wait?timeout=0").status == 202
    assert api.client.call("GET", "/jobs/unknown/wait").slug == "not-found"
    found = []
    waiter = threading.Thread(target=lambda: found.append(api.client.call("GET", f"/jobs/{id}/wait")))
    waiter.start()
    api.client.delete(f"/jobs/{id}")
    waiter.join(20)
    assert [(reply.status, reply.json["status"]) for reply in found] == [(200, "cancelled")]


@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_a_client_learns_of_the_end_of_its_job_by_an_event(
    broker: str, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait over HTTP took as long as the rest of the server's interval; here no timer reads within the test."""
    for name in ("INTERVAL_S", "LOST_S"):
        monkeypatch.setattr(f"fileq.server.services.{name}", 3_600.0)
    reads: list[list[str]] = []
    look_at = JobWaits._look_at

    async def counted(self: JobWaits, ids: list[str]) -> None:
        await look_at(self, ids)
        reads.append(ids)

    monkeypatch.setattr(JobWaits, "_look_at", counted)
    values = {"broker": broker, "redis": {"addr": valkey.address}}
    with served_api(tmp_path, values) as api, fileq.Client(f"http://{api.client.host}", key=ADMIN_KEY) as client:
        other, handle = client.enqueue("slow"), client.enqueue("slow")
        raised: list[str] = []

        def wait() -> None:
            with pytest.raises(fileq.JobCancelled) as caught:
                handle.wait()
            raised.append(str(caught.value))

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: len(reads) == 2, 20, "it was read at the beginning, and when the subscription was there")
        other.cancel()
        handle.cancel()
        waiter.join(20)
        assert raised == [f"job {handle.id} was cancelled"]
    assert reads == [[handle.id]] * 2


def test_keys_are_made_listed_used_and_revoked(api: ServedApi) -> None:
    made = api.client.post("/keys", {"name": "watcher", "scopes": ["operate"]})
    assert made.status == 201
    watcher = api.client.with_key(made.json["key"])
    assert watcher.get("/whoami")["scopes"] == ["read", "operate"]
    assert watcher.call("GET", "/keys").slug == "forbidden"

    def last_used() -> str | None:
        [listed] = [one for one in api.client.get("/keys")["keys"] if one["name"] == "watcher"]
        used: str | None = listed["last_used"]
        return used

    assert wait_until(last_used)
    assert made.json["key"] not in str(api.client.get("/keys"))
    assert api.client.post("/keys", {"name": "watcher", "scopes": ["read"]}).slug == "invalid"
    assert api.client.delete(f"/keys/{made.json['id']}").json == {"message": "Key revoked", "id": made.json["id"]}
    assert watcher.call("GET", "/whoami").slug == "unauthenticated"
    assert api.client.delete(f"/keys/{made.json['id']}").slug == "not-found"
    wrong = made.json["key"][:-1] + ("A" if made.json["key"][-1] != "A" else "B")
    assert api.client.with_key(wrong).call("GET", "/whoami").slug == "unauthenticated"


def test_the_audit_keeps_the_newest_entries(api: ServedApi) -> None:
    for number in range(3):
        AUDIT.put(api.broker, f"{number:013d}-x", [REFUSED] * DOCUMENT_ENTRIES_MAX)
    AUDIT.trim(api.broker, 250)
    assert not [name for name in api.broker.documents("audit") if name.startswith("0000000000000-")]


def test_refused_requests_push_nothing_out_of_the_audit_that_was_done(tmp_path: Path) -> None:
    """Low: refused requests push admin entries out of the audit."""
    with served_api(tmp_path) as api:
        api.client.post("/queues/low/pause")
        reader = api.client_with(Scope.READ)
        for number in range(5):
            assert reader.post(f"/queues/low/resume?n={number}").slug == "forbidden"

        def written() -> list[AuditEntry]:
            return [entry for entry in audit_page(api.broker, 100)[0] if entry.result == 403]

        wait_until(lambda: len(written()) == 5)
        assert "pause_queue" in [entry.action for entry in audit_page(api.broker, 100)[0]]
        for number in range(20):  # 2,000 entries that were refused
            AUDIT_REFUSED.put(api.broker, f"{9_999_999_999_900 + number}-x", [REFUSED] * DOCUMENT_ENTRIES_MAX)
        AUDIT.trim(api.broker)
        AUDIT_REFUSED.trim(api.broker)
        refused = [entry for entry in audit_page(api.broker, 5_000)[0] if entry.result == 403]
        assert refused == [REFUSED] * 2_000, "the newest of them"
        for name in AUDIT_REFUSED.all(api.broker):
            AUDIT_REFUSED.put(api.broker, name, [])
        shown = api.client.get("/audit?limit=1")
        assert shown["entries"][0]["action"] == "create_key"
        following = api.client.get(f"/audit?limit=1&cursor={shown['next_cursor']}")
        assert following["entries"][0]["action"] == "pause_queue", "pages go over both lists"
