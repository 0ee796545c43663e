"""What a key may do and see beside its scopes: its restriction, what others made, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from fileq.actions.bulk import JobAction
from fileq.commands.api_keys import KEY_USES, KEYS
from fileq.core.api_key import LATEST_MS, Scope, StoredKey
from fileq.core.job import wall_clock_ms
from fileq.queries.job_filter import JobFilter
from fileq.server.console.console_app import VIEWS
from fileq.server.operations import OperationStore
from fileq.server.route import Route
from fileq.server.routes import ROUTES
from tests.integration.server.test_routes import path_of
from tests.support.api_client import API, ApiClient, Reply, ServedApi, served_api
from tests.support.dead_jobs import bury
from tests.support.live_client import SocketClient
from tests.support.waiting import wait_until

SECRET = "the-secret-of-another"


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def api(top: Path) -> Iterator[ServedApi]:
    with served_api(top, {"server": {"upload_dir": str(top), "files": "download"}}) as served:
        yield served


def test_a_time_that_can_not_be_written_is_refused_and_a_broken_document_leaves_the_list_readable(
    api: ServedApi,
) -> None:
    """Low: `expires_at` of year 9999 with an offset."""
    wanted = {"name": "far", "scopes": ["read"]}
    for at in ("9999-12-31T23:59:59-10:00", "0001-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z"):
        assert api.client.post("/keys", {**wanted, "expires_at": at}).slug == "invalid", at
    made = api.client.post("/keys", {**wanted, "expires_at": "9999-12-31T23:59:59Z"})
    assert made.json["expires"] == "9999-12-31T23:59:59.000Z"
    later = StoredKey("later", "0" * 64, (Scope.ADMIN,), 1, LATEST_MS + 1)
    api.broker.put_document(KEYS.kind, "zzzzzzz1", msgspec.json.encode(later))
    api.broker.put_document(KEYS.kind, "zzzzzzz2", b'{"name":"\xff"}')
    api.broker.put_document(KEY_USES.kind, made.json["id"], msgspec.json.encode({"last_used_ms": LATEST_MS + 1}))
    assert "far" in [key["name"] for key in api.client.get("/keys")["keys"]]


def test_a_schedule_has_no_part_in_the_jobs_of_one_whose_name_begins_like_it(api: ServedApi) -> None:
    """Medium: cancelling schedule `report` also cancels `report.eu`."""
    runs = {}
    for name in ("report", "report.eu"):
        api.client.call("PUT", f"/schedules/{name}", {"cron": "0 0 1 1 *", "type": "report"})
        runs[name] = api.client.post(f"/schedules/{name}/run").json["id"]
    for name, id in runs.items():
        assert [job["id"] for job in api.client.get(f"/jobs?schedule={name}")["jobs"]] == [id]
    choice = {"action": "cancel", "filter": {"schedule": "report"}, "dry_run": False, "expect": 1}
    assert api.client.post("/jobs/actions", choice).json["done"] == 1
    assert [api.client.get(f"/jobs/{id}")["status"] for id in runs.values()] == ["cancelled", "pending"]


class Foreign(msgspec.Struct, frozen=True):
    """What the administrator made: a dead job, one for later with a unique key, one of a file, and a batch."""

    dead: str
    later: str
    filed: str
    path: str
    operation: str
    batch: str = "foreign"


@pytest.fixture(scope="module")
def foreign(api: ServedApi, top: Path) -> Foreign:
    directory = top / f"other-{SECRET}"
    for one in (directory, top / "mine"):
        one.mkdir()
    (directory / "a.txt").write_text(SECRET)
    (top / "mine" / "b.txt").write_text("b")
    job = {"type": "other", "payload": {"text": SECRET}}
    dead = api.client.post("/jobs", job).json["id"]
    bury(api.broker, error=f"ValueError: {SECRET}")
    later = api.client.post("/jobs", {**job, "unique_key": "taken", "delay": "1h"}).json["id"]
    filed = api.client.post("/jobs", {"path": str(directory / "a.txt"), "delay": "1h"}).json["id"]
    api.client.post("/batches", {"id": "foreign", "name": SECRET})
    api.client.post("/batches/foreign/jobs", {"jobs": [{**job, "delay": "1h"}]})
    operations = OperationStore(api.broker, wall_clock_ms)
    conditions = {"error": SECRET}
    operation = operations.create(
        JobAction.RETRY, JobFilter(error=SECRET), conditions, matched=1, cutoff_ms=0, created_by="x"
    )
    wait_until(lambda: api.client.get(f"/operations/{operation.id}")["ended_at"])
    return Foreign(dead, later, filed, str(directory / "a.txt"), operation.id)


def aimed_at(route: Route, foreign: Foreign) -> list[tuple[str, Any]]:
    """Requests to a route that serves limited callers, about what is not theirs."""
    id, batch, file = foreign.later, foreign.batch, quote(foreign.path)
    jobs = [
        {"type": "other"},
        {"command": ["id"]},
        {"path": foreign.path},
        {"type": "mine", "unique_key": "taken"},
        {"type": "mine", "id": id},
        {"type": "mine", "batch_id": batch},
        {"type": "mine", "tags": {"fileq.made_by": "me"}},
    ]
    acts: list[dict[str, Any]] = [{"ids": [foreign.dead, id, foreign.filed], "dry_run": dry} for dry in (True, False)]
    acts += [{"filter": {}}, {"filter": {}, "dry_run": False, "expect": 1000}]
    cases: dict[str, list[tuple[str, Any]]] = {
        "enqueue_job": [("/jobs", job) for job in jobs],
        "enqueue_jobs": [("/jobs/bulk", {"jobs": [job]}) for job in jobs],
        "show_job": [(f"/jobs/{one}", None) for one in (id, foreign.dead, foreign.filed)],
        "wait_for_job": [(f"/jobs/{id}/wait?timeout=0", None)],
        "cancel_job": [(f"/jobs/{id}", None)],
        "retry_job": [(f"/jobs/{foreign.dead}/retry", None)],
        "run_job": [(f"/jobs/{id}/run", None)],
        "list_jobs": [("/jobs", None), (f"/jobs?q={SECRET}", None)],
        "act_on_jobs": [("/jobs/actions", {"action": word, **act}) for word in JobAction for act in acts],
        "list_operations": [("/operations", None)],
        "show_operation": [(f"/operations/{foreign.operation}", None)],
        "stop_operation": [(f"/operations/{foreign.operation}", None)],
        "list_dead": [("/dead", None)],
        "show_dead_groups": [("/dead/groups", None), ("/dead/groups?by=type", None)],
        "retry_dead": [("/dead/retry", act) for act in acts],
        "purge_dead": [("/dead", None)],
        "delete_dead": [(f"/dead/{foreign.dead}", None)],
        "create_batch": [
            ("/batches", {"id": batch}),
            ("/batches", {"id": "new", "parent": batch}),
            ("/batches", {"id": "new", "then": {"type": "mine", "tags": {"fileq.made_by": "me"}}}),
        ],
        "show_one_batch": [(f"/batches/{batch}", None)],
        "add_batch_jobs": [(f"/batches/{batch}/jobs", {"jobs": [{"type": "mine"}]})],
        "seal_one_batch": [(f"/batches/{batch}/seal", None)],
        "show_content": [
            (f"/files/content?path={file}", None),
            (f"/files/content?path={file}&job={foreign.filed}", None),
        ],
        "upload_file": [(f"/uploads{file.removeprefix(quote(str(Path(foreign.path).parents[1])))}", b"overwritten")],
        "who_am_i": [("/whoami", None)],
        "show_description": [("/openapi.json", None)],
    }
    assert route.name in cases, f"{route.method} {route.path} serves limited callers: say how it could be misused"
    return cases[route.name]


def state_of(api: ServedApi, foreign: Foreign) -> tuple[Any, ...]:
    jobs = api.client.get("/jobs?limit=1000")["jobs"]
    batch = api.client.get(f"/batches/{foreign.batch}")
    operation = api.client.get(f"/operations/{foreign.operation}")["state"]
    shown = {job["id"]: (job["status"], job["is_cancel_requested"]) for job in jobs}
    return shown, batch["status"], batch["total"], operation, Path(foreign.path).read_text()


def check_refused(api: ServedApi, foreign: Foreign, client: ApiClient, route: Route) -> None:
    before = state_of(api, foreign)
    for path, body in aimed_at(route, foreign):
        shown = f"{route.method} {path} {body}"
        reply: Reply = client.call(route.method, path, body)
        assert SECRET not in reply.body.decode(), shown
        given = f"{path} {body}"
        for id in (foreign.dead, foreign.later, foreign.filed):
            assert id in given or id not in reply.body.decode(), f"{shown}: {reply.body!r}"
        assert state_of(api, foreign) == before, f"{shown} changed something: {reply}"


@pytest.fixture(scope="module")
def restricted(api: ServedApi, top: Path) -> dict[str, ApiClient]:
    """Keys with every scope: only the restriction can be in the way."""
    types, prefix = {"allowed_types": ("mine",)}, {"path_prefix": str(top / "mine")}
    given = {"typed": types, "below": prefix, "both": {**types, **prefix}}
    return {name: api.client_with(*Scope, name=name, **options) for name, options in given.items()}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_restricted_key_sees_and_changes_only_what_its_restriction_names(
    api: ServedApi, foreign: Foreign, restricted: dict[str, ApiClient], route: Route
) -> None:
    """H2: a `--path-prefix` key may run any type. Every route: one that says nothing about limits is refused."""
    for name, client in restricted.items():
        if route.serves_limited:
            check_refused(api, foreign, client, route)
        else:
            reply = client.call(route.method, path_of(route))
            assert reply.slug == "not-allowed", f"{name}: {reply}"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_an_enqueue_key_knows_only_what_it_made_itself(api: ServedApi, foreign: Foreign, route: Route) -> None:
    """Medium: limited keys read foreign documents by id or unique key, add to and seal foreign batches."""
    if Scope.ENQUEUE not in route.scopes or route.name in ("enqueue_job", "enqueue_jobs", "upload_file"):
        return  # below; an upload is what the scope is for
    client = api.client_with(Scope.ENQUEUE, name=f"walks {route.name}")
    check_refused(api, foreign, client, route)


def test_a_duplicate_tells_an_enqueue_key_only_that_there_is_one(api: ServedApi, foreign: Foreign) -> None:
    """Medium: limited keys read foreign documents by unique key."""
    client = api.client_with(Scope.ENQUEUE, name="duplicates")
    for known in ({"unique_key": "taken"}, {"id": foreign.later}):
        one = client.post("/jobs", {"type": "mine", **known})
        assert (one.slug, SECRET in one.body.decode()) == ("duplicate", False)
        many = client.post("/jobs/bulk", {"jobs": [{"type": "mine", **known}]})
        assert many.json == {"jobs": [{"id": "", "result": "duplicate", "warning": None}], "enqueued": 0}
    mine = client.post("/jobs", {"type": "mine", "unique_key": "own", "delay": "1h"}).json["id"]
    again = client.post("/jobs", {"type": "mine", "unique_key": "own"})
    assert (again.status, again.json["id"]) == (200, mine), "its own job is shown"
    assert client.get(f"/jobs/{mine}")["tags"] == {"fileq.made_by": client.get("/whoami")["id"]}
    other = api.client_with(Scope.ENQUEUE, name="another of them")
    assert other.call("GET", f"/jobs/{mine}").slug == "not-found"


def test_an_enqueue_key_adds_to_its_own_batches_only_and_reads_their_callbacks(api: ServedApi) -> None:
    """Medium: limited keys add to and seal foreign batches."""
    client, other = (api.client_with(Scope.ENQUEUE, Scope.READ, name=f"batches {n}") for n in range(2))
    lone = api.client_with(Scope.ENQUEUE, name="batches alone")
    for one in (client, lone):
        id = one.post("/batches", {"name": "own", "finally": {"type": "tidy"}}).json["id"]
        assert one.post("/batches", {"id": id}).status == 200
        assert one.post("/batches", {"parent": id}).status == 201
        assert one.post(f"/batches/{id}/jobs", {"jobs": [{"type": "a"}]}).status == 201
        assert one.post("/jobs", {"type": "a", "batch_id": id}).status == 201
        assert other.post(f"/batches/{id}/jobs", {"jobs": [{"type": "a"}]}).slug == "not-found"
        assert other.post("/jobs", {"type": "a", "batch_id": id}).slug == "batch-closed"
        assert other.post(f"/batches/{id}/seal").slug == "not-found"
        assert other.get(f"/batches/{id}")["total"] == 3, "it may read all"
        assert one.post(f"/batches/{id}/seal").json["has_changed"]
        api.client.post(f"/batches/{id}/cancel")
    operator = api.client_with(Scope.ENQUEUE, Scope.OPERATE, name="operator of batches")
    id = client.post("/batches", {}).json["id"]
    assert operator.post(f"/batches/{id}/jobs", {"jobs": [{"type": "a"}]}).status == 201
    assert operator.post(f"/batches/{id}/seal").json["has_changed"]


def test_a_restricted_key_works_on_what_its_restriction_names(
    api: ServedApi, foreign: Foreign, restricted: dict[str, ApiClient], top: Path
) -> None:
    wanted = {"typed": [{"type": "mine"}], "below": [{"path": str(top / "mine" / "b.txt")}]}
    wanted["both"] = wanted["typed"] + wanted["below"]
    for name, jobs in wanted.items():
        client = restricted[name]
        ids = [client.post("/jobs", {**job, "delay": "1h"}).json["id"] for job in jobs]
        assert {job["id"] for job in client.get("/jobs")["jobs"]} >= set(ids)
        assert all(client.get(f"/jobs/{id}")["status"] == "scheduled" for id in ids)
        counted = client.post("/jobs/actions", {"action": "cancel", "filter": {}}).json["matched"]
        assert counted == len(client.get("/jobs?status=scheduled")["jobs"])
        assert client.post(f"/jobs/{ids[0]}/run").status == 200
        assert client.delete(f"/jobs/{ids[0]}").status == 200
        choice = {"action": "cancel", "filter": {}, "dry_run": False, "expect": counted}
        assert client.post("/jobs/actions", choice).json["done"] == counted - 1
    assert api.client.get(f"/jobs/{foreign.later}")["status"] == "scheduled"
    path = quote(str(top / "mine" / "b.txt"))
    assert restricted["below"].send("GET", f"{API}/files/content?path={path}").body == b"b"
    assert restricted["below"].call("PUT", "/uploads/mine/c.txt", b"c").status == 201


def test_pages_and_events_show_more_than_a_restriction_names_so_they_are_refused(
    api: ServedApi, restricted: dict[str, ApiClient]
) -> None:
    """H2: what people are shown."""
    client = restricted["both"]
    for page in VIEWS:
        reply = client.send("GET", f"/dashboard{page.open_path.format(id='x', name='x')}")
        assert reply.status == (200 if page.serves_limited else 403), page.open_path
    assert SocketClient(client.port, f"{API}/ws", {"X-API-Key": client.key}).status == 403


def test_a_path_with_parent_parts_is_taken_from_no_client(
    api: ServedApi, foreign: Foreign, restricted: dict[str, ApiClient], top: Path
) -> None:
    """Low: 'other/in2/../secret' accepted by realpath against abspath: the link decided what was compared, the text
    what was stored."""
    (top / "mine" / "sub").mkdir()
    (top / "mine" / "a.txt").write_text("allowed")
    link = Path(foreign.path).parent / "in2"
    link.symlink_to(top / "mine" / "sub")
    path = f"{link}/../a.txt"
    for client in (api.client, restricted["below"]):
        assert client.post("/jobs", {"path": path}).slug == "invalid"
        assert client.post("/jobs/bulk", {"jobs": [{"path": path}]}).json["errors"][0]["pointer"] == "/jobs/0/path"
    for prefix in ("relative", "/srv/../etc", "/srv/./in", "//srv"):
        wanted = {"name": "odd", "scopes": ["enqueue"], "path_prefix": prefix}
        assert api.client.post("/keys", wanted).slug == "invalid", prefix


def test_an_enqueue_key_does_not_learn_which_paths_outside_the_roots_exist(
    api: ServedApi, foreign: Foreign, top: Path, tmp_path: Path
) -> None:
    """Finding: an enqueue key learns which paths exist: "leads outside", "no such file" or "is a directory"."""
    client = api.client_with(Scope.ENQUEUE, name="looks around")
    loop = tmp_path / "loop"  # not beside `top`, where pytest looks for dead links
    loop.symlink_to(loop)
    (top / "way-out").symlink_to("/etc")
    outside = ["/etc/passwd", "/etc/nosuch", "/etc", "/etc/passwd/x", "/", "/dev/null", str(loop), f"{loop}/x"]
    outside += [f"{top}/way-out{rest}" for rest in ("", "/passwd", "/nosuch", "/passwd/x")]
    answers = {}
    for path in outside:
        one = client.post("/jobs", {"path": path})
        many = client.post("/jobs/bulk", {"jobs": [{"path": path}]})
        shown = [{key: value for key, value in reply.json.items() if key != "instance"} for reply in (one, many)]
        answers[path] = one.status, many.status, str(shown).replace(f"'{path}'", "PATH")
    assert len(set(answers.values())) == 1, answers
    assert "leads outside the allowed roots" in answers["/etc/nosuch"][2]
    for path, why in ((top, "is a directory"), (top / "mine", "is a directory"), (top / "nosuch", "no such file")):
        assert why in client.post("/jobs", {"path": str(path)}).body.decode(), "below a root the reason helps"


def test_a_path_with_a_nul_is_refused_for_every_key(
    api: ServedApi, foreign: Foreign, restricted: dict[str, ApiClient], top: Path
) -> None:
    """Finding: NUL in a path with a `--path-prefix` key answered 500."""
    for client in (restricted["below"], api.client):
        for path in (f"{top}/mine/b\0.txt", "\0", f"{top}/mine/\0/b.txt"):
            assert client.post("/jobs", {"path": path}).slug == "invalid", path
            many = client.post("/jobs/bulk", {"jobs": [{"path": path}]})
            assert (many.slug, many.json["errors"][0]["pointer"]) == ("invalid", "/jobs/0/path"), path
            for place in ("content?path=", "trace?path="):
                reply = client.call("GET", f"/files/{place}{quote(path)}")
                assert reply.status in (403, 422), f"{place} {reply}"
            assert client.call("PUT", f"/uploads/{quote(path.strip('/'))}", b"x").status == 422
    for field in ("path", "under"):
        assert api.client.post("/files/reprocess", {field: f"{top}/\0"}).slug == "invalid"


def test_numbers_of_a_list_count_no_foreign_job(tmp_path: Path) -> None:
    """Finding: restricted keys see counts of foreign jobs: total and scanned of lists and groups."""
    with served_api(tmp_path) as api:
        for type in ("other", "mine", "other", "other"):
            api.client.post("/jobs", {"type": type})
            bury(api.broker, error="ValueError: x")
        for type in ("other", "mine", "other"):
            api.client.post("/jobs", {"type": type})
        client = api.client_with(Scope.READ, name="restricted", allowed_types=("mine",))
        lists = {"/jobs": 2, "/jobs?limit=1": 2, "/jobs?status=pending": 1, "/dead": 1, "/dead?q=nothing": 0}
        groups = {f"/dead/groups?by={by}": 1 for by in ("fingerprint", "directory", "kind", "type")}
        groups["/dead/groups?q=nothing"] = 0
        for path, most in (lists | groups).items():
            found = client.get(path)
            assert (found["total"], found["scanned"]) == (most, most), path
        whole = api.client.get("/dead/groups?q=nothing")
        assert (whole["total"], whole["scanned"]) == (4, 4), "a key without a restriction sees how far the search went"


def test_the_name_of_a_file_is_neither_shown_nor_found_if_paths_are_hidden(tmp_path: Path) -> None:
    """Low: base names are shown and searchable with `server.files: none`."""
    name = "invoice-4711.pdf"
    with served_api(tmp_path, {"server": {"files": "none"}}) as api:
        (tmp_path / name).write_text("x")
        api.client.post("/batches", {"id": "b", "catch": {"type": "tell", "priority": "high"}})
        api.client.post("/queues/high/pause")
        made = api.client.post("/jobs", {"path": str(tmp_path / name), "batch_id": "b", "priority": "low"})
        id = made.json["id"]
        bury(api.broker, error=f"ValueError: {name} is broken; see {tmp_path}/{name}")
        assert api.client.get("/jobs/b.catch")["batch_facts"]["first_error"] == "ValueError"
        [group] = api.client.get("/dead/groups")["groups"]
        paths = [f"/jobs/{id}", f"/jobs/{id}/wait", "/jobs", "/dead", "/batches/b", "/batches/b/dead", "/batches"]
        paths += [f"/dead/groups?by={by}" for by in ("fingerprint", "directory", "kind", "type")]
        for path in paths:
            assert name not in api.client.call("GET", path).body.decode(), path
        assert "is broken" in api.client.get(f"/jobs/{id}")["error"], "the rest is shown"
        for page in ("", "/jobs", f"/jobs/{id}", "/dead", f"/dead?fingerprint={group['fingerprint']}", "/batches/b"):
            assert name not in api.client.send("GET", f"/dashboard{page}").body.decode(), page
        for words in (f"q={name}", "q=invoice", f"error={name}", "error=4711"):
            assert api.client.get(f"/jobs?{words}")["jobs"] == [], words
        choice = {"action": "retry", "filter": {"fingerprint": group["fingerprint"]}, "dry_run": False, "expect": 1}
        answer = api.client.post("/jobs/actions", choice)
        assert (answer.json["done"], name in answer.body.decode()) == (1, False)
        wait_until(lambda: "act_on_jobs" in str(api.client.get("/audit")))
        page = f"/dashboard/admin/operations/{answer.json['action_id']}"
        for address in (f"{API}/audit", "/dashboard/admin/audit", "/dashboard/admin/operations", page):
            assert name not in api.client.send("GET", address).body.decode(), address


def test_the_page_of_a_schedule_shows_no_path_if_paths_are_hidden(tmp_path: Path) -> None:
    """Low: the schedule page shows paths to read keys."""
    with served_api(tmp_path, {"server": {"files": "none"}}) as api:
        (tmp_path / "secret-inbox").mkdir()
        scan = {"cron": "@daily", "scan": str(tmp_path / "secret-inbox")}
        reprocess = {"cron": "@daily", "reprocess": {"match": "**/secret-inbox/*"}}
        for name, wanted in {"s": scan, "r": reprocess}.items():
            made = api.client.call("PUT", f"/schedules/{name}", wanted, {"If-None-Match": "*"})
            assert made.status == 201, made
        reader = api.client_with(Scope.READ)
        for client in (reader, api.client):
            for path in ("", "/edit/s", "/edit/r", "/new?copy=s", "/new?copy=r"):
                page = client.send("GET", f"/dashboard/scheduled{path}")
                assert (page.status, b"secret-inbox" in page.body) == (200, False), path
            assert "secret-inbox" not in str(client.get("/schedules"))
        edited = api.client.send("GET", "/dashboard/scheduled/edit/s").body.decode()
        assert "data-send" not in edited, "saving the form would lose the path"
