"""Lists, bulk actions, operations, dead jobs, queues and stats, as a client of the REST API sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fileq.brokers.types import Entry
from fileq.core.events import OperationEnded, OperationStarted
from fileq.queries import job_selection
from fileq.testing.conformance.builders import a_job, worker_info
from tests.support.api_client import ServedApi, served_api
from tests.support.dead_jobs import bury
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("lists")) as served:
        yield served


@pytest.fixture(autouse=True)
def is_empty(api: ServedApi) -> None:
    """Each test begins without dead and waiting jobs."""
    everything = {"action": "cancel", "filter": {}, "dry_run": False, "expect": 1_000_000}
    assert api.client.post("/jobs/actions", everything).status == 200
    assert api.client.delete("/dead").status == 200


def ids_in(answer: dict[str, Any]) -> list[str]:
    return [job["id"] for job in answer["jobs"]]


def test_a_list_is_read_by_pages_and_by_cursors(api: ServedApi) -> None:
    jobs = [{"type": "even" if n % 2 else "odd", "id": f"job-{n:02d}", "tags": {"n": str(n)}} for n in range(25)]
    made = api.client.post("/jobs/bulk", {"jobs": jobs})
    assert (made.status, made.json["enqueued"]) == (201, 25)
    assert [job["id"] for job in made.json["jobs"]] == [job["id"] for job in jobs]
    ids = [f"job-{n:02d}" for n in range(25)]
    first = api.client.get("/jobs?status=pending")
    assert (ids_in(first), first["total"], first["page"], first["limit"]) == (ids[:20], 25, 1, 20)
    assert api.client.get("/jobs?status=pending&type=&q=&page=1&limit=20&cursor=") == first
    second = api.client.get("/jobs?status=pending&page=2")
    followed = api.client.get(f"/jobs?status=pending&cursor={first['next_cursor']}")
    assert ids_in(second) == ids_in(followed) == ids[20:]
    assert (second["next_cursor"], second["page"], followed["page"]) == (None, 2, 2)
    even = api.client.get("/jobs?type=even&limit=5&page=2&status=pending")
    assert (ids_in(even), even["total"], even["is_partial"]) == (ids[1::2][5:10], 12, False)
    for query in ("tag.n=7", "q=JOB-07", "tag.n=7&since=1h&queue=low&priority=low"):
        assert ids_in(api.client.get(f"/jobs?status=pending&{query}")) == ["job-07"], query
    for query in ("until=1h", "worker=x", "batch=x", "schedule=x", "match=*.pdf", "error=x", "fingerprint=abcd"):
        assert ids_in(api.client.get(f"/jobs?status=pending&{query}")) == [], query
    assert first["jobs"][3]["tags"] == {"n": "3"}


def test_what_is_wrong_with_a_list_is_named(api: ServedApi) -> None:
    cursor = api.client.get("/jobs?limit=1&status=cancelled")["next_cursor"]
    for query, pointer, detail in (
        ("statsu=dead", "?statsu", "did you mean status?"),
        ("status=ded", "?status", "it must be one of cancelled, completed, dead"),
        ("limit=0", "?limit", "from 1 to 1,000"),
        ("limit=1001", "?limit", "from 1 to 1,000"),
        ("page=0", "?page", "from 1 to 10,000"),
        ("page=1000&limit=20", "?page", "beyond 10,000 jobs"),
        ("queue=lwo", "?queue", "the queues are high, low"),
        ("since=yesterday", "?since", "a duration such as 2h"),
        ("since=1h&until=2h", "?since", "later than until"),
        ("fingerprint=xyz", "?fingerprint", "a text that matches ^["),
        ("match={1..999999}", "?match", "stand for more than 1,000 globs"),
        (f"match={'{a,b}' * 10}", "?match", "stand for more than 1,000 globs"),
        (f"match={'*/' * 100}{{1..60}}", "?match", "more than 1,000 wildcards"),
        ("cursor=abc", "?cursor", "begin without it"),
        (f"cursor={cursor}&status=dead", "?cursor", "begin without it"),
        (f"cursor={cursor}&status=cancelled&page=2", "?page", "give one of them"),
    ):
        reply = api.client.call("GET", f"/jobs?{query}")
        assert reply.slug == "invalid", query
        found = {error["pointer"]: error["detail"] for error in reply.json["errors"]}
        assert detail in found.get(pointer, ""), (query, found)
    for path in ("/files", "/events"):
        reply = api.client.call("GET", f"{path}?match={{1..999999}}")
        assert "stand for more than 1,000 globs" in reply.json["errors"][0]["detail"], path
    reply = api.client.post("/files/reprocess", {"match": "{1..999999}", "dry_run": True})
    assert "stand for more than 1,000 globs" in reply.json["errors"][0]["detail"]
    assert api.client.call("GET", f"/dead?cursor={cursor}").slug == "invalid"
    assert api.client.call("GET", "/dead?status=pending").slug == "invalid"


def test_a_glob_with_many_stars_is_compared_with_a_deep_path_at_once(api: ServedApi) -> None:
    """H1: one GET with six `**/` stopped the server for more than 35 s, longer than this client waits."""
    deep = f"/srv/{'a/' * 1500}x.bin"
    api.broker.enqueue([Entry(a_job("deep", filepath=deep), "low")])
    for match, found in (
        ("/**/a/**/a/**/a/**/a/**/a/**/b", []),
        ("**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/*.pdf", []),
        ("*a*a*a*a*a*a*a*b", []),
        ("/**/a/**/a/**/a/**/a/**/a/**/*.bin", ["deep"]),
    ):
        assert ids_in(api.client.get(f"/jobs?status=pending&match={match}")) == found, match


def test_of_many_new_jobs_none_is_enqueued_if_one_is_wrong(api: ServedApi) -> None:
    wrong = [
        {"type": "a"},
        {"type": "a", "path": "/x"},
        {"type": "a", "priority": "urgent"},
        {"type": "a", "delay": "x"},
    ]
    reply = api.client.post("/jobs/bulk", {"jobs": wrong})
    pointers = {error["pointer"] for error in reply.json["errors"]}
    assert (reply.slug, pointers) == ("invalid", {"/jobs/1", "/jobs/2/priority", "/jobs/3"})
    assert api.client.get("/jobs?status=pending")["total"] == 0
    assert api.client.post("/jobs/bulk", {"jobs": []}).slug == "invalid"
    assert api.client.post("/jobs/bulk", {"jobs": [{"type": "a"}] * 1001}).slug == "invalid"
    key = {"Idempotency-Key": "bulk-1"}
    two = {"jobs": [{"type": "a"}, {"type": "b"}]}
    first, again = api.client.post("/jobs/bulk", two, key), api.client.post("/jobs/bulk", two, key)
    assert [job["id"] for job in first.json["jobs"]] == [job["id"] for job in again.json["jobs"]]
    assert (first.json["enqueued"], again.json["enqueued"]) == (2, 0)
    assert api.client.post("/jobs/bulk", {"jobs": [{"type": "a"}] * 3}, key).slug == "idempotency-mismatch"
    assert api.client.get("/jobs?status=pending")["total"] == 2


def test_a_job_that_waits_for_its_time_is_made_due(api: ServedApi) -> None:
    id = api.client.post("/jobs", {"type": "later", "delay": "1h"}).json["id"]
    for _ in range(2):
        reply = api.client.post(f"/jobs/{id}/run")
        assert (reply.status, reply.json) == (200, {"message": "Job is due now", "status": "pending"})
    assert api.client.get("/jobs?status=pending")["jobs"][0]["id"] == id
    api.client.delete(f"/jobs/{id}")
    assert api.client.post(f"/jobs/{id}/run").slug == "conflict"
    assert api.client.post("/jobs/unknown/run").slug == "not-found"


def test_an_action_is_counted_first_and_refused_if_more_jobs_match(api: ServedApi) -> None:
    bury(api.broker, 12)
    bury(api.broker, 3, type="mail", error="OSError: disk {n} is full")
    wanted: dict[str, Any] = {"action": "retry", "filter": {"type": "report"}}
    dry = api.client.post("/jobs/actions", wanted).json
    assert (dry["dry_run"], dry["matched"], len(dry["sample"]), dry["done"]) == (True, 12, 5, 0)
    assert {job["type"] for job in dry["sample"]} == {"report"}
    assert api.client.get("/dead")["total"] == 15
    assert api.client.post("/jobs/actions", wanted | {"dry_run": False}).slug == "invalid"
    assert api.client.post("/jobs/actions", wanted | {"dry_run": False, "expect": 11}).slug == "count-changed"
    for filter in ({"status": "pending"}, {"tpye": "x"}, {"since": "x"}):
        assert api.client.post("/jobs/actions", wanted | {"filter": filter}).slug == "invalid"
    assert api.client.post("/jobs/actions", {"action": "retry"}).slug == "invalid"
    done = api.client.post("/jobs/actions", wanted | {"dry_run": False, "expect": 12}).json
    assert (done["dry_run"], done["matched"], done["done"], done["refused"]) == (False, 12, 12, [])
    assert api.client.get("/jobs?status=pending")["total"] == 12
    ids = ids_in(api.client.get("/dead"))
    chosen = {"action": "delete", "ids": [ids[0], "unknown"], "dry_run": False}
    result = api.client.post("/jobs/actions", chosen).json
    assert (result["done"], [one["id"] for one in result["refused"]]) == (1, ["unknown"])
    cancel = {"action": "cancel", "filter": {"status": "pending"}, "dry_run": False, "expect": 12}
    assert api.client.post("/jobs/actions", cancel).json["done"] == 12


def test_dead_jobs_are_grouped_retried_and_purged(api: ServedApi) -> None:
    bury(api.broker, 4)
    bury(api.broker, 2, error="OSError: disk is full")
    groups = api.client.get("/dead/groups")
    assert [group["count"] for group in groups["groups"]] == [4, 2]
    fingerprint = groups["groups"][1]["fingerprint"]
    found = api.client.get(f"/dead?fingerprint={fingerprint}")
    assert (found["total"], found["jobs"][0]["error"], found["jobs"][0]["fingerprint"]) == (
        2,
        "OSError: disk is full",
        fingerprint,
    )
    assert api.client.get("/dead/groups?by=kind&error=oserror")["groups"][0]["key"] == "OSError"
    retried = api.client.post("/dead/retry", {"filter": {"fingerprint": fingerprint}, "dry_run": False, "expect": 2})
    assert (retried.status, retried.json["done"]) == (200, 2)
    id = ids_in(api.client.get("/dead"))[0]
    assert api.client.delete(f"/dead/{id}").json == {"message": "Dead job deleted"}
    assert api.client.delete(f"/dead/{id}").slug == "not-found"
    assert api.client.delete(f"/dead/{ids_in(api.client.get('/jobs?status=pending'))[0]}").slug == "conflict"
    purged = api.client.delete("/dead")
    assert (purged.status, purged.json) == (200, {"message": "Purged 3 dead jobs"})


def test_queues_workers_stats_and_configuration_are_shown(api: ServedApi) -> None:
    api.client.post("/jobs", {"type": "a", "priority": "high"})
    queues = api.client.get("/queues")
    assert [(queue["name"], queue["waiting"], queue["is_paused"]) for queue in queues["queues"]] == [
        ("high", 1, False),
        ("low", 0, False),
    ]
    for message, is_new in (("Queue paused", True), ("Queue was already paused", False)):
        paused = api.client.post("/queues/high/pause").json
        assert (paused["message"], paused["is_paused"], paused["has_changed"]) == (message, True, is_new)
    assert api.client.get("/queues/high")["pause"]["reason"] == ""
    paused = api.client.post("/queues/high/pause", {"reason": "the disk is full"}).json
    assert (paused["has_changed"], paused["reason"]) == (False, "the disk is full")
    assert api.client.get("/queues/high")["pause"]["reason"] == "the disk is full"
    assert api.client.call("POST", "/queues/high/pause", {"reason": "x" * 1001}).slug == "invalid"
    assert api.client.post("/queues/high/resume").json["message"] == "Queue resumed"
    assert api.client.post("/queues/high/resume").json["message"] == "Queue was not paused"
    assert "did you mean 'high'?" in api.client.call("GET", "/queues/hihg").json["detail"]
    api.broker.register({"here": worker_info()})
    assert [process["slots"] for process in api.client.get("/workers")["workers"]] == [1]
    api.broker.deregister(["here"])
    hours = api.client.get("/stats/hourly?hours=3")["hours"]
    assert len(hours) == 3
    assert hours[-1]["produced"] > 0
    assert api.client.call("GET", "/stats/hourly?hours=721").slug == "invalid"
    live = api.client.get("/stats/live")
    assert live["samples"][-1]["waiting"] == 1
    config = api.client.get("/config")["config"]
    assert config["server"]["api_key"] == "***"
    assert api.config.server.api_key not in str(config)


def test_an_operation_does_many_jobs_shows_its_progress_and_can_be_stopped(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fileq.server.api.action_endpoints.AT_ONCE_MAX", 10)
    bury(api.broker, 450)
    made = api.client.post("/dead/retry", {"filter": {}, "dry_run": False, "expect": 450})
    id = made.json["operation"]["id"]
    assert (made.status, made.headers["location"]) == (202, f"/api/v1/operations/{id}")
    ended = wait_until(lambda: (found := api.client.get(f"/operations/{id}"))["ended_at"] and found, 30)
    assert (ended["state"], ended["matched"], ended["done"], ended["refused"]) == ("completed", 450, 450, 0)
    assert api.client.get("/operations")["operations"][0] == ended
    assert api.client.get("/jobs?status=pending&limit=1")["total"] == 450
    assert api.client.delete(f"/operations/{id}").json == ended
    assert api.client.delete("/operations/unknown").slug == "not-found"
    names = [event.name for event in api.events if isinstance(event, OperationStarted | OperationEnded)]
    assert names[-2:] == ["operation.started", "operation.ended"]


def test_a_list_leaves_out_what_is_long(api: ServedApi) -> None:
    """Medium: lists of large payloads: they carry outlines, and say what is left out."""
    short = api.client.post("/jobs", {"type": "note", "payload": {"a": 1}}).json["id"]
    long = api.client.post("/jobs", {"type": "note", "payload": "x" * 10_000, "tags": {"k": "v"}}).json["id"]
    found = {job["id"]: job for job in api.client.get("/jobs?type=note")["jobs"]}
    assert (found[short]["payload"], found[short]["left_out"]) == ({"a": 1}, [])
    assert (found[long]["payload"], found[long]["left_out"]) == (None, ["payload"])
    assert found[long]["tags"] == {"k": "v"}
    whole = api.client.get(f"/jobs/{long}")
    assert (whole["payload"], whole["left_out"]) == ("x" * 10_000, [])


@pytest.mark.parametrize("query", ["", "&type=note", "&status=pending", "&tag.k=v"])
def test_the_bytes_of_a_page_are_bounded(api: ServedApi, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """Medium: lists of large payloads: a page ends before it has too many bytes, and the next one goes on there."""
    monkeypatch.setattr(job_selection, "BYTES_MAX", 5000)
    job = {"type": "note", "payload": "x" * 2000, "tags": {"k": "v"}}
    first, *_, last = api.config.worker.priorities
    wanted = [api.client.post("/jobs", {**job, "priority": queue}).json["id"] for queue in (*[first] * 3, *[last] * 3)]
    found, cursor, pages = list[str](), "", 0
    while cursor is not None:
        page = api.client.get(f"/jobs?limit=100{query}" + (f"&cursor={cursor}" if cursor else ""))
        found += ids_in(page)
        assert len({*wanted} & {*ids_in(page)}) <= 2
        assert page["is_partial"] == (page["next_cursor"] is not None)
        cursor, pages = page["next_cursor"], pages + 1
    assert len(found) == len(set(found)), "none is twice"
    assert set(wanted) <= set(found), "none is missing"
    assert pages >= 3
