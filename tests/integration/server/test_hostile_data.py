"""What other programs and careless clients store, as the API and the pages show it: times, nesting, sizes."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import Raw

import fileq
from fileq.brokers.types import Entry
from fileq.commands.audit_entries import audit_page
from fileq.core.api_key import Scope
from fileq.core.events import Event, RequestFailed
from fileq.core.job import Version, decode, encode, file_job, typed_job
from fileq.queries.documents import job_document
from fileq.server.console.view import JSON_SHOWN
from fileq.testing.conformance.builders import foreign
from tests.support.api_client import ADMIN_KEY, API, ServedApi, served_api
from tests.support.dead_jobs import bury
from tests.support.servers.server import Server
from tests.support.waiting import wait_until

NOW = datetime(2026, 11, 18, tzinfo=UTC)
AFTER_9999_NS = 253_402_300_800 * 1_000_000_000
PAGES = ("/dashboard", "/dashboard/jobs", "/dashboard/queues", "/dashboard/scheduled")


def failures(events: list[Event]) -> list[str]:
    return [f"{one.action}: {one.error}" for one in events if isinstance(one, RequestFailed)]


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


def store(api: ServedApi, id: str, payload: Any = None, **fields: Any) -> None:
    """A job with these fields, as a program that writes its JSON itself may make it."""
    job = decode(encode(typed_job("noop", payload, priority="low", now=NOW, id=id).but(**fields)))
    api.broker.enqueue([Entry(job, "low")])


def test_the_page_of_a_deeply_nested_payload_is_no_longer_than_others(tmp_path: Path) -> None:
    """A4: a payload of 58 kB became a page of 55 MB, because each level of it was indented."""
    with served_api(tmp_path) as api:
        store(api, "wide", [nested(60)] * 400)
        store(api, "long", ["x" * 10 * JSON_SHOWN])
        reader = api.client_with(Scope.READ)
        for id in ("wide", "long"):
            page = reader.send("GET", f"/dashboard/jobs/{id}")
            assert page.status == 200
            assert "… truncated" in page.body.decode()
            assert len(page.body) < 3 * JSON_SHOWN
        assert reader.get("/jobs/wide")["payload"] == [nested(60)] * 400, "the API has all of it"


def test_a_payload_that_looks_like_that_of_a_delivery_breaks_no_list(tmp_path: Path) -> None:
    """A5: with `files: none` one job with `batch_id` in its payload, nested deeply, made pages and lists answer 500."""
    with served_api(tmp_path, {"server": {"files": "none"}}) as api:
        sender = api.client_with(Scope.ENQUEUE)
        payload = {"batch_id": "delivery-x", "directory": "/mine", "x": nested(60)}
        assert sender.post("/jobs", {"type": "noop", "id": "one", "payload": payload}).status == 201
        shown = api.client.get("/jobs")["jobs"]
        assert [job["payload"] for job in shown] == [payload], "what a caller gave stays as it is"
        for page in (*PAGES, "/dashboard/jobs/one"):
            assert api.client.send("GET", page).status == 200, page
        assert failures(api.events) == []


def test_the_time_of_a_file_after_the_year_9999_is_shown_as_its_last_day(tmp_path: Path) -> None:
    """A6: RFC 3339 ends with the year 9999, so the lists of files answered 500 and `fileq trace` failed."""
    path = tmp_path / "far.txt"
    with served_api(tmp_path) as api:
        job = file_job(os.fsencode(path), size=1, priority="low", now=NOW, signature=f"1-{AFTER_9999_NS}")
        api.broker.enqueue([Entry(job, "low", Version(os.fsencode(path), f"1-{AFTER_9999_NS}"))])
        assert [one["modified_at"][:10] for one in api.client.get("/files")["files"]] == ["9999-12-31"]
        assert api.client.send("GET", "/dashboard/files").status == 200
        assert failures(api.events) == []


@pytest.mark.parametrize("field", ["scheduled_at", "deadline"])
@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_time_that_utc_can_not_say_is_refused(tmp_path: Path, field: str, time: str) -> None:
    """A6: such a time was answered with 500."""
    with served_api(tmp_path) as api:
        reply = api.client.post("/jobs", {"type": "noop", field: time})
        assert reply.slug == "invalid"
        assert "years 1 to 9999" in reply.json["detail"]
        assert failures(api.events) == []


@pytest.mark.parametrize("field", ["process_at", "deadline", "creation_time", "failed_at"])
@pytest.mark.parametrize("text", ["garbage", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "2026-01-01"])
def test_a_wrong_time_in_a_job_breaks_no_page(tmp_path: Path, field: str, text: str) -> None:
    """L1: the page of such a job answered 500."""
    with served_api(tmp_path) as api:
        store(api, "one", **{field: text})
        for page in (*PAGES, "/dashboard/jobs/one"):
            assert api.client.send("GET", page).status == 200, page
        assert api.client.send("GET", f"{API}/jobs/one").status == 200
        assert failures(api.events) == []


@pytest.mark.parametrize("number", ["1e999", "9" * 6000], ids=["infinite", "long"])
def test_a_number_that_no_value_can_hold_is_shown_as_text(tmp_path: Path, number: str) -> None:
    """A7: one such payload, pushed by another program, made lists and pages answer 500 and `fileq show` fail."""
    with served_api(tmp_path) as api:
        job = typed_job("noop", None, priority="low", now=NOW, id="odd").but(payload=Raw(number.encode()))
        api.broker.enqueue([Entry(job, "low")])
        assert [one["id"] for one in api.client.get("/jobs")["jobs"]] == ["odd"]
        assert api.client.get("/jobs/odd")["payload"] == number
        for page in (*PAGES, "/dashboard/jobs/odd"):
            assert api.client.send("GET", page).status == 200, page
        assert failures(api.events) == []
        [record] = api.broker.records(["odd"])
        assert job_document(record).payload == number


@pytest.mark.parametrize("id", ["a/b", "/", "a/", "x/retry", "a%2Fb", "../b"])
def test_a_job_whose_id_has_a_slash_is_read_retried_cancelled_and_deleted(
    tmp_path: Path, valkey: Server, id: str
) -> None:
    """Another program pushed it. An encoded slash counted as one that separates two parts, so no address led to it."""
    quoted = quote(id, safe="")
    with served_api(tmp_path, {"broker": "redis", "redis": {"addr": valkey.address}}) as api:

        def die() -> None:
            with valkey.client() as client:
                client.lpush(api.config.worker.queues["low"], foreign(id, type="noop"))
            bury(api.broker)

        die()
        assert api.client.delete(f"/dead/{quoted}").json == {"message": "Dead job deleted"}
        assert api.client.call("GET", f"/jobs/{quoted}").slug == "not-found"
        die()
        assert api.client.get(f"/jobs/{quoted}")["id"] == id
        page = api.client.send("GET", f"/dashboard/jobs/{quoted}")
        assert page.status == 200
        assert f'data-action="POST /jobs/{quoted}/retry"' in page.body.decode()
        assert f'href="/dashboard/jobs/{quoted}"' in api.client.send("GET", "/dashboard/jobs").body.decode()
        assert api.client.post(f"/jobs/{quoted}/retry").status == 200
        with fileq.Client(f"http://{api.client.host}", key=ADMIN_KEY) as over_http:
            assert over_http.job(id).status().status == "pending"
        assert api.client.delete(f"/jobs/{quoted}").json["result"] == "cancelled"
        assert wait_until(lambda: [one for one in audit_page(api.broker, 100)[0] if one.action == "cancel_job"])
        assert failures(api.events) == []


def test_an_encoded_slash_is_part_of_a_name_and_never_of_a_path(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        definition = {"cron": "0 3 * * *", "type": "report"}
        assert api.client.call("PUT", "/schedules/a%2Fb", definition, {"If-None-Match": "*"}).slug == "invalid"
        assert api.client.call("POST", "/queues/low%2F/pause").slug == "not-found"
        for path in (f"{API}/jobs%2Fx", f"{API}%2Fjobs"):
            assert api.client.send("GET", path).status == 404, path
