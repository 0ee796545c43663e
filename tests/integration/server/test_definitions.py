"""Batches, schedules, webhooks and the audit list, as a client of the REST API sees them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from fileq.core.api_key import Scope
from tests.support.api_client import ServedApi, served_api
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import open_receiver


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, broker_values: dict[str, Any]) -> Iterator[ServedApi]:
    allowed = {"allow_http": True, "allow_networks": ["127.0.0.0/8"], "allow_ports": [*range(1024, 65536)]}
    schedules = {"configured": {"cron": "@daily", "type": "report"}}
    values = {**broker_values, "webhooks": allowed, "schedules": schedules}
    with served_api(tmp_path_factory.mktemp("definitions"), values) as served:
        yield served


# batches


def test_a_batch_is_created_filled_sealed_and_cancelled(api: ServedApi) -> None:
    then = {"type": "report", "payload": {"to": "ops"}, "priority": "high", "timeout": "1m"}
    made = api.client.post("/batches", {"id": "b-1", "name": "nightly", "then": then, "finally": {"type": "tidy"}})
    assert (made.status, made.headers["location"]) == (201, "/api/v1/batches/b-1")
    assert [one["kind"] for one in made.json["callbacks"]] == ["then", "finally"]
    assert api.client.post("/batches", {"id": "b-1"}).status == 200, "a repeat finds it"
    jobs = [{"type": "a", "payload": 1}, {"type": "b", "priority": "high", "id": "mine"}]
    added = api.client.post("/batches/b-1/jobs", {"jobs": jobs})
    assert [one["result"] for one in added.json["jobs"]] == ["enqueued", "enqueued"]
    assert api.client.get("/jobs/mine")["batch_id"] == "b-1"
    assert [job["id"] for job in api.client.get("/jobs?batch=b-1&type=b")["jobs"]] == ["mine"]
    assert api.client.post("/jobs", {"type": "c", "batch_id": "b-1"}).status == 201
    assert api.client.get("/batches/b-1")["waiting"] == 3
    for message, has_changed in (("Batch sealed", True), ("Batch was already sealed", False)):
        said = api.client.post("/batches/b-1/seal").json
        assert said == {"message": message, "id": "b-1", "has_changed": has_changed}
    assert api.client.post("/batches/b-1/jobs", {"jobs": jobs[:1]}).slug == "batch-closed"
    assert api.client.post("/jobs", {"type": "c", "batch_id": "b-1"}).slug == "batch-closed"
    assert api.client.post("/batches/b-1/retry").json == {"count": 0, "left": {}}
    assert api.client.get("/batches/b-1/dead") == {"jobs": [], "next_cursor": None}
    for message, has_changed in (("Batch cancelled", True), ("Batch was already cancelled", False)):
        said = api.client.post("/batches/b-1/cancel").json
        assert said == {"message": message, "id": "b-1", "has_changed": has_changed}
    shown = api.client.call("GET", "/batches/b-1")
    assert shown.json["cancelled"] == 3
    again = api.client.call("GET", "/batches/b-1", headers={"If-None-Match": shown.headers["etag"]})
    assert again.status == 304
    assert api.client.call("GET", "/batches/a:b").slug == "not-found", "no batch can have this name"
    assert api.client.post("/jobs", {"type": "c", "batch_id": "a:b"}).slug == "invalid"
    assert api.client.post("/jobs/bulk", {"jobs": [{"type": "c", "batch_id": "b-1"}]}).slug == "batch-closed"


@pytest.mark.parametrize("verb", ["seal", "cancel"])
def test_a_finished_batch_is_neither_sealed_nor_cancelled_and_the_message_says_why(api: ServedApi, verb: str) -> None:
    id = api.client.post("/batches", {"name": f"ended-before-{verb}"}).json["id"]
    assert api.client.post(f"/batches/{id}/seal").json["has_changed"], "it is empty: finished by it"
    said = api.client.post(f"/batches/{id}/{verb}").json
    assert said == {"message": "Batch had already finished", "id": id, "has_changed": False}


def test_batches_are_listed_by_pages_and_wrong_ones_are_refused(api: ServedApi) -> None:
    made = [api.client.post("/batches", {"name": f"page-{n}"}).json["id"] for n in range(3)]
    first = api.client.get("/batches?limit=2&unfinished=true")
    assert [one["id"] for one in first["batches"]] == made[:0:-1]
    rest = api.client.get(f"/batches?limit=2&unfinished=true&cursor={first['next_cursor']}")
    assert rest["batches"][0]["id"] == made[0]
    assert api.client.call("GET", f"/batches?cursor={first['next_cursor']}").slug == "invalid", "of another filter"
    assert api.client.post("/batches", {"name": "no blanks"}).slug == "invalid"
    assert api.client.post("/batches", {"parent": "no-such"}).slug == "conflict"
    assert api.client.post("/batches", {"then": {"type": "x", "payload": {"batch_id": 1}}}).status == 201
    for path in ("/batches/no-such/seal", "/batches/no-such/cancel", "/batches/no-such/retry"):
        assert api.client.post(path).slug == "not-found"
    assert api.client.post("/batches/no-such/jobs", {"jobs": [{"type": "a"}]}).slug == "not-found"
    narrow = api.client_with(Scope.ENQUEUE, allowed_types=["a"])
    assert narrow.post("/batches", {"then": {"type": "b"}}).slug == "not-allowed"
    own = narrow.post("/batches", {"then": {"type": "a"}}).json["id"]
    assert narrow.post(f"/batches/{own}/jobs", {"jobs": [{"type": "b"}]}).slug == "not-allowed"
    assert narrow.post(f"/batches/{made[0]}/jobs", {"jobs": [{"type": "a"}]}).slug == "not-found", "of another key"


# schedules


def test_a_schedule_is_defined_changed_paused_run_and_removed(api: ServedApi) -> None:
    def put(body: Any, headers: dict[str, str]) -> Any:
        return api.client.call("PUT", "/schedules/nightly", body, headers)

    wanted = {"cron": "30 2 * * 1-5", "type": "report", "timezone": "Asia/Tokyo", "payload": {"days": 7}}
    assert put(wanted, {"If-Match": "*"}).slug == "precondition-failed", "there is none"
    made = put(wanted, {"If-None-Match": "*"})
    assert made.status == 201
    assert (len(made.json["times"]), made.json["schedule"]["status"]) == (5, "active")
    assert put(wanted, {}).slug == "precondition-required"
    assert put(wanted, {"If-Match": '"other"'}).slug == "precondition-failed"
    etag = api.client.call("GET", "/schedules/nightly").headers["etag"]
    assert api.client.post("/schedules/nightly/pause").json["has_changed"] is True
    paused = api.client.call("GET", "/schedules/nightly")
    assert (paused.json["schedule"]["status"], paused.headers["etag"]) == ("paused", etag), "of the definition only"
    changed = put({**wanted, "timezone": "UTC"}, {"If-Match": etag})
    assert (changed.status, changed.json["schedule"]["timezone"]) == (200, "UTC")
    assert put(wanted, {"If-Match": etag}).slug == "precondition-failed"
    assert api.client.post("/schedules/nightly/resume").json["has_changed"] is True
    job = api.client.get(f"/jobs/{api.client.post('/schedules/nightly/run').json['id']}")
    assert (job["type"], job["payload"]["days"]) == ("report", 7)
    assert put({"cron": "never", "type": "x"}, {"If-Match": "*"}).slug == "invalid"
    assert [one["name"] for one in api.client.get("/schedules")["schedules"]] == ["nightly"]
    assert api.client.delete("/schedules/nightly").json["message"] == "Schedule removed"
    for reply in (api.client.delete("/schedules/nightly"), api.client.post("/schedules/nightly/run")):
        assert reply.slug == "not-found"
    assert api.client.call("GET", "/schedules/no%20name").slug == "not-found"


def test_an_expression_is_previewed_in_words_with_its_next_times(api: ServedApi) -> None:
    reader = api.client_with(Scope.READ)
    shown = reader.post("/schedules/preview", {"cron": "30 2 * * 1-5", "timezone": "Asia/Tokyo"}).json
    assert "02:30" in shown["words"] or "2:30" in shown["words"]
    assert [one["local"][11:] for one in shown["times"]] == ["02:30:00+09:00"] * 5
    for wrong in ({"cron": "61 * * * *"}, {"cron": "@daily", "timezone": "Mars"}, {"cron": "0 0 31 2 *"}):
        assert reader.post("/schedules/preview", wrong).slug == "invalid", wrong


@pytest.mark.parametrize(("verb", "call"), [("retry", "batches_by_id"), ("cancel", "cancel_batch")])
def test_the_retries_and_cancellations_of_large_batches_hold_up_no_other_request(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch, verb: str, call: str
) -> None:
    """A key with the scope operate took all threads for calls of the broker, for minutes."""
    operator = api.client_with(Scope.OPERATE, name=f"greedy {verb}")
    api.client.post("/batches", {"id": f"large-{verb}"})
    begun, is_released, real = list[str](), Event(), getattr(api.broker, call)

    def slow(id: str, *more: Any) -> Any:
        begun.append(id)
        assert is_released.wait(60)
        return real(id, *more)

    monkeypatch.setattr(api.broker, call, slow)
    with ThreadPoolExecutor(16) as threads:
        try:
            calls = [threads.submit(operator.post, f"/batches/large-{verb}/{verb}") for _ in range(16)]
            refused = [one.result() for one in islice(as_completed(calls, 30), 14)]
            assert {one.slug for one in refused} == {"busy"}
            assert api.client.get("/queues")
            assert len(begun) == 2
        finally:
            is_released.set()
        assert [one.result(30).status for one in calls].count(200) == 2


# webhooks


def test_the_tests_of_a_slow_webhook_hold_up_no_other_request(api: ServedApi) -> None:
    """N3: a key with the scope operate took all threads for calls of the broker with tests of a slow receiver."""
    operator, other = (api.client_with(Scope.OPERATE, name=f"{name} operator") for name in ("greedy", "other"))
    with open_receiver() as receiver, ThreadPoolExecutor(16) as threads:
        receiver.answer = receiver.hang
        api.client.post("/webhooks", {"name": "slow", "url": receiver.url, "events": ["job.dead"]})
        tests = [threads.submit(operator.post, "/webhooks/slow/test") for _ in range(16)]
        refused = [one.result() for one in islice(as_completed(tests, 30), 14)]
        assert {one.slug for one in refused} == {"busy"}
        assert "this key has reached its limit of 2 tests of webhooks" in refused[0].json["detail"]
        assert other.get("/queues")
        waiting = threads.submit(other.post, "/webhooks/slow/test")
        wait_until(lambda: receiver.running == 3, what="two tests of one key and one of the other wait")
        receiver.released.set()
        assert waiting.result(30).json["error"] == ""
        assert [one.result(30).status for one in tests].count(200) == 2
    api.client.delete("/webhooks/slow")


def test_a_webhook_is_added_tested_rotated_and_removed(api: ServedApi) -> None:
    with open_receiver() as receiver:
        wanted = {"name": "alerts", "url": f"{receiver.url}?token=hidden", "events": ["job.dead"], "type": "report"}
        made = api.client.post("/webhooks", wanted)
        assert (made.status, made.json["secret"][:6]) == (201, "whsec_")
        [shown] = api.client.get("/webhooks")["webhooks"]
        assert (shown["name"], shown["status"], shown["filter"]) == ("alerts", "enabled", {"type": "report"})
        assert "hidden" not in str(shown)
        assert made.json["secret"] not in str(shown)
        assert api.client.post("/webhooks", wanted).slug == "invalid", "the name is taken"
        tested = api.client.post("/webhooks/alerts/test").json
        assert (tested["error"], tested["answer_status"], len(receiver.received)) == ("", 204, 1)
    assert api.client.post("/webhooks/alerts/test").json["error"], "the receiver is away"
    rotated = api.client.post("/webhooks/alerts/rotate").json
    assert rotated["secret"] != made.json["secret"]
    assert rotated["previous_secret_until"]
    assert api.client.post("/webhooks/alerts/enable").json == {"name": "alerts", "has_changed": False}
    assert api.client.get("/webhooks/alerts/deliveries")["deliveries"] == []
    assert api.client.delete("/webhooks/alerts").json["has_changed"] is True
    assert api.client.post("/webhooks", {**wanted, "events": ["job.odd"]}).slug == "invalid"
    private = api.client.post("/webhooks", {**wanted, "url": "https://10.1.2.3/hook"})
    assert (private.slug, "webhooks.allow_networks" in str(private.json)) == ("invalid", True)
    for verb in ("test", "rotate", "enable"):
        assert api.client.post(f"/webhooks/alerts/{verb}").slug == "not-found"
    assert api.client.call("GET", "/webhooks/alerts/deliveries").slug == "not-found"


# audit


def test_the_audit_list_has_each_unsafe_request_once_over_all_pages(api: ServedApi) -> None:
    caller = api.client_with(Scope.ENQUEUE, name="audited")
    for n in range(7):
        assert caller.post("/jobs", {"type": "x", "id": f"audited-{n}"}).status == 201
    assert caller.call("GET", "/audit").slug == "forbidden"

    def pages() -> list[Any]:
        found, cursor = [], ""
        while True:
            page = api.client.get(f"/audit?limit=3{cursor}")
            found += page["entries"]
            if page["next_cursor"] is None:
                return [one for one in found if one["who"] == "audited"]
            cursor = f"&cursor={page['next_cursor']}"

    entries = wait_until(lambda: len(pages()) == 7 and pages(), 30, "all are written")
    assert {(one["action"], one["target"], one["result"]) for one in entries} == {("enqueue_job", "/jobs", 201)}
    assert len({one["request_id"] for one in entries}) == 7
    assert [one["at"] for one in entries] == sorted((one["at"] for one in entries), reverse=True)
    assert api.client.call("GET", "/audit?cursor=made-up").slug == "invalid"


def audit_of(api: ServedApi, who: str, more: str = "") -> list[Any]:
    """The oldest first."""
    return [one for one in api.client.get(f"/audit?limit=1000{more}")["entries"][::-1] if one["who"] == who]


def test_the_audit_says_what_was_edited_and_never_a_secret(api: ServedApi) -> None:
    who = f"editor-{uuid4().hex[:6]}"
    caller = api.client_with(Scope.ADMIN, name=who)
    wanted = {"cron": "@daily", "type": "report", "timeout": "10m"}
    etag = caller.call("PUT", "/schedules/changing", wanted, {"If-None-Match": "*"}).headers["etag"]
    edited = {**wanted, "cron": "@hourly", "timezone": "Asia/Tokyo"}
    caller.call("PUT", "/schedules/changing", edited, {"If-Match": etag})
    caller.post("/schedules/changing/pause")
    caller.delete("/schedules/changing")
    hook = {"name": "told", "url": "https://example.org/x?token=hidden", "events": ["job.dead"]}
    secrets = [caller.post("/webhooks", hook).json["secret"], caller.post("/webhooks/told/rotate").json["secret"]]
    caller.delete("/webhooks/told")
    key = caller.post("/keys", {"name": f"{who}-2", "scopes": ["read"]}).json
    caller.delete(f"/keys/{key['id']}")
    for note in ("known", "fixed tomorrow"):
        caller.call("PUT", "/dead/groups/0123456789ab/acknowledgement", {"note": note, "cause": "page 3"})
    caller.post("/queues/low/pause")
    caller.post("/queues/low/resume")
    every = wait_until(lambda: len(found := audit_of(api, who)) == 13 and found, 30, "all are written")
    changes = [
        (one["action"], {change["field"]: (change["old"], change["new"]) for change in one.get("changes", ())})
        for one in every
    ]
    assert [fields for action, fields in changes if action == "put_schedule"] == [
        {"cron": (None, "@daily"), "type": (None, "report"), "within": (None, "10m"), "timeout": (None, "10m")},
        {"cron": ("@daily", "@hourly"), "timezone": ("UTC", "Asia/Tokyo")},
    ]
    said = dict(changes)
    assert said["pause_one_schedule"] == {"paused": ("no", "yes")}
    assert said["delete_schedule"]["cron"] == ("@hourly", None)
    assert said["add_webhook"]["events"] == (None, "job.dead")
    assert said["rotate_webhook"] == {"secret": (None, "replaced")}
    assert said["create_key"]["scopes"] == (None, "read")
    assert said["revoke_key"]["name"] == (f"{who}-2", None)
    assert said["put_acknowledgement"].pop("note") == ("known", "fixed tomorrow")
    [(before, after)] = said["put_acknowledgement"].values()  # deaths until then are covered
    assert before < after
    assert {one["detail"] for one in every if one["action"] == "put_acknowledgement"} == {"page 3"}
    assert said["resume_queue"] == {"paused": ("yes", "no")}
    assert [secret for secret in (*secrets, key["key"], "hidden") if secret in str(every)] == []


def test_the_audit_says_which_jobs_and_marks_a_request_that_only_counted(api: ServedApi) -> None:
    who = f"operator-{uuid4().hex[:6]}"
    caller = api.client_with(Scope.OPERATE, Scope.ENQUEUE, name=who)
    job = caller.post("/jobs", {"type": "audited"}).json["id"]
    bulk = {"action": "cancel", "filter": {"type": "audited", "status": "pending"}}
    caller.post("/jobs/actions", {**bulk, "dry_run": True})
    done = caller.post("/jobs/actions", {**bulk, "dry_run": False, "expect": 1}).json
    made, dry, real = wait_until(lambda: len(found := audit_of(api, who)) == 3 and found, 30, "all are written")
    assert (made["job_id"], made["type"]) == (job, "audited")
    assert (dry["is_dry_run"], dry["count"]) == (True, 0)
    assert ("is_dry_run" in real, real["count"], done["done"]) == (False, 1, 1)
    assert (real["detail"], real["action_id"]) == ("action: cancel, status: pending, type: audited", done["action_id"])
    assert audit_of(api, who, "&dry_runs=false") == [made, real]
