"""Types, ids and batches that only fileq itself may use: every way in refuses them. What another program pushes to a
queue all the same is dead before it acts. The installed program, on a real server and on SQLite."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import fileq
from fileq.brokers.batches import NewBatch
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.schedule_definitions import broker_now_ms, define
from fileq.brokers.types import Entry
from fileq.client.batch_handle import batch_request
from fileq.client.broker_transport import BrokerTransport
from fileq.client.schedule_changes import run_now
from fileq.config import config_from
from fileq.core.api_key import Scope
from fileq.core.batch import BatchState
from fileq.core.delivery import CHECK_TYPE
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, raw_id, typed_job
from fileq.core.own_jobs import foreign_error
from fileq.core.schedule import ScheduleDefinition, ScheduleDocument, job_id_of, next_slot
from fileq.handlers.extensions import EXTENSIONS
from fileq.testing.conformance.builders import foreign
from tests.support.api_client import ADMIN_KEY, ApiClient, ServedApi, served_api, served_broker
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

OWN_TYPES = ("fileq.delivery_check", "fileq.webhook", "fileq.reprocess", "fileq.scan", "fileq.anything")
OWN_IDS = (
    "sched.nightly.20260101T000000Z",
    "sched.nightly.manual.x",
    "payroll.then",
    "payroll.catch",
    "payroll.finally",
)
DELIVERY = "delivery-in-12345678-1"
CHECK = {"directory": "/proc/self", "path": "/proc/self/environ", "size": 1, "sha256": "0" * 64}


# the API, with a key that may only enqueue


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("own")) as served:
        served.broker.create_batch(NewBatch(DELIVERY, is_own=True))
        yield served


@pytest.fixture(scope="module")
def stranger(api: ServedApi) -> ApiClient:
    client = api.client_with(Scope.ENQUEUE)
    assert client.post("/batches", {"id": "open"}).status == 201
    return client


Requests = dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]]
JOB_REQUESTS: Requests = {
    "a job": lambda job: ("/jobs", job),
    "a job among others": lambda job: ("/jobs/bulk", {"jobs": [{"type": "note"}, job]}),
    "a job of a batch": lambda job: ("/batches/open/jobs", {"jobs": [job]}),
}
CALLBACK_REQUESTS: Requests = {
    f"the callback {kind}": lambda job, kind=kind: ("/batches", {kind: job})  # type: ignore[misc]
    for kind in ("then", "catch", "finally")
}


@pytest.mark.parametrize("type", OWN_TYPES)
@pytest.mark.parametrize("way", [*JOB_REQUESTS, *CALLBACK_REQUESTS])
def test_an_enqueue_key_gets_no_job_of_a_type_of_fileqs_own(
    api: ServedApi, stranger: ApiClient, way: str, type: str
) -> None:
    """C1: with an enqueue-only key, such a job read any file, sent any text and scanned any directory."""
    path, body = (JOB_REQUESTS | CALLBACK_REQUESTS)[way]({"type": type, "payload": CHECK})
    before = api.broker.census().counters, api.broker.batch_page().batches
    reply = stranger.post(path, body)
    assert (reply.status, reply.slug) == (422, "invalid"), reply
    assert f"type '{type}' is reserved: types that begin with 'fileq.' are fileq's own" in reply.json["detail"]
    assert (api.broker.census().counters, api.broker.batch_page().batches) == before


@pytest.mark.parametrize("id", OWN_IDS)
@pytest.mark.parametrize("way", JOB_REQUESTS)
def test_an_enqueue_key_plants_no_id_of_a_schedule_or_a_callback(
    api: ServedApi, stranger: ApiClient, way: str, id: str
) -> None:
    """H4: a job with such an id kept the slot or the callback out for ever."""
    path, body = JOB_REQUESTS[way]({"type": "note", "id": id})
    reply = stranger.post(path, body)
    assert (reply.status, reply.slug) == (422, "invalid"), reply
    assert f"id '{id}' is reserved" in reply.json["detail"]
    assert api.broker.records([id]) == [None]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", {"type": "note", "batch_id": DELIVERY}),
        ("/jobs/bulk", {"jobs": [{"type": "note", "batch_id": DELIVERY}]}),
        (f"/batches/{DELIVERY}/jobs", {"jobs": [{"type": "note"}]}),
        (f"/batches/{DELIVERY}/seal", None),
        ("/batches", {"id": "delivery-mine"}),
        ("/batches", {"name": "delivery"}),
        ("/batches", {"parent": DELIVERY}),
    ],
    ids=["a job", "a job among others", "jobs of a batch", "seal", "an id", "a name", "a parent"],
)
def test_no_key_creates_fills_or_seals_a_delivery(api: ServedApi, stranger: ApiClient, path: str, body: Any) -> None:
    """H5: strangers added members to the delivery of another, and sealed it before it was complete."""
    before = api.broker.batch_page().batches
    assert 400 <= stranger.post(path, body).status < 500, "the batch is not its own, or it is reserved"
    reply = api.client.post(path, body)
    assert (reply.status, reply.slug) == (422, "invalid"), reply
    assert "is reserved: batches that begin with 'delivery-' are those of producer.deliveries" in reply.json["detail"]
    assert api.broker.batch_page().batches == before


def test_an_operator_may_cancel_and_retry_a_delivery(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        api.broker.create_batch(NewBatch(DELIVERY, is_own=True))
        operator = api.client_with(Scope.OPERATE, Scope.READ)
        assert operator.post(f"/batches/{DELIVERY}/cancel").json["has_changed"]
        assert operator.post(f"/batches/{DELIVERY}/retry").status == 200


# the client library


WAYS_OF_CLIENTS: dict[str, Callable[[fileq.Client, str, str, str], object]] = {
    "enqueue": lambda client, type, id, batch: client.enqueue(type, id=id, batch=batch or None),
    "enqueue_many": lambda client, type, id, batch: client.enqueue_many(
        [fileq.Call("note"), fileq.Call(type, id=id, batch=batch or None)]
    ),
    "enqueue_file": lambda client, type, id, batch: client.enqueue_file("a.txt", id=id, batch=batch or None),
    "a callback": lambda client, type, id, batch: client.batch(then=type),
    "a new batch": lambda client, type, id, batch: client.batch(batch.partition("-")[0] or "x", parent=batch or None),
    "seal": lambda client, type, id, batch: client.find_batch(batch).seal(),
    "add": lambda client, type, id, batch: client.find_batch(batch).add("note"),
}
REFUSED_CALLS = [
    *((way, type, "", "") for type in OWN_TYPES for way in ("enqueue", "enqueue_many", "a callback")),
    *((way, "note", id, "") for id in OWN_IDS for way in ("enqueue", "enqueue_many", "enqueue_file")),
    *((way, "note", "", DELIVERY) for way in WAYS_OF_CLIENTS if way != "a callback"),
]


@pytest.fixture(scope="module", params=["direct", "http", "async", "async http"])
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Makes a call of a client of this kind, and says what it raised."""
    directory = tmp_path_factory.mktemp("client")
    (directory / "a.txt").write_text("a")
    server = {"port": 0, "api_key": ADMIN_KEY, "rate_limit": "100000/s"}
    config = config_from({"broker": "memory", "producer": {"scan_dir": str(directory)}, "server": server})
    broker = MemoryBroker(config)
    broker.create_batch(NewBatch(DELIVERY, is_own=True))

    def run(way: str, *given: str) -> None:
        before = broker.census().counters, broker.batch_page().batches
        try:
            if request.param.startswith("async"):
                asyncio.run(_awaited(fileq.AsyncClient.of(client), way, given))
            else:
                WAYS_OF_CLIENTS[way](client, *given)
        finally:
            assert (broker.census().counters, broker.batch_page().batches) == before

    with pytest.MonkeyPatch.context() as patch, served_broker(config, broker) as port:
        patch.chdir(directory)
        over_http = fileq.Client(f"http://127.0.0.1:{port}", key=ADMIN_KEY)
        client = over_http if request.param.endswith("http") else fileq.Client.over(BrokerTransport(broker, config))
        yield run
        over_http.close()


async def _awaited(client: Any, way: str, given: tuple[str, ...]) -> None:
    if way in ("seal", "add"):
        batch = await client.find_batch(given[2])
        await (batch.seal() if way == "seal" else batch.add("note"))
    else:
        await WAYS_OF_CLIENTS[way](client, *given)  # type: ignore[misc]


@pytest.mark.parametrize(("way", "type", "id", "batch"), REFUSED_CALLS)
def test_no_client_makes_what_is_fileqs_own(
    call: Callable[..., None], way: str, type: str, id: str, batch: str
) -> None:
    """C1, H4, H5: the library refuses it too, on a broker and through a server."""
    with pytest.raises(fileq.FileqError, match="is reserved"):
        call(way, type, id, batch)


# the command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((("enqueue", "--type", type), f"--type '{type}' is reserved") for type in OWN_TYPES),
        *((("enqueue", "--type", "note", "--id", id), f"--id '{id}' is reserved") for id in OWN_IDS),
        (("enqueue", "a.txt", "--id", OWN_IDS[0]), f"--id '{OWN_IDS[0]}' is reserved"),
        (("batch", "create", "a.txt", "--then", "fileq.scan"), "then: type 'fileq.scan' is reserved"),
        (("enqueue", "a.txt", "--batch", "b", "--catch", "fileq.scan"), "catch: type 'fileq.scan' is reserved"),
        (("batch", "create", "--name", "delivery"), "is reserved: batches that begin with 'delivery-'"),
        (("batch", "create", "--parent", DELIVERY), f"batch '{DELIVERY}' is reserved"),
        (("enqueue", "a.txt", "--batch", DELIVERY), f"batch '{DELIVERY}' is reserved"),
        (("enqueue", "--type", "note", "--batch", DELIVERY), f"batch '{DELIVERY}' is reserved"),
        (("batch", "seal", DELIVERY), f"batch '{DELIVERY}' is reserved"),
        (
            ("schedule", "add", "s", "@daily", "--type", "fileq.webhook"),
            "types that begin with 'fileq.' are fileq's own",
        ),
    ],
)
def test_no_command_makes_what_is_fileqs_own(shell: CommandLine, words: tuple[str, ...], message: str) -> None:
    """C1, H4, H5: an error of usage, and nothing is enqueued."""
    (shell.setup.inbox / "a.txt").write_text("a")
    os.chdir(shell.setup.inbox)
    shell.broker.create_batch(NewBatch(DELIVERY, is_own=True))
    assert message in shell.fail(*words, code=2)
    [view] = shell.broker.batch_page().batches
    assert (view.id, view.state, view.total, shell.broker.census().counters) == (DELIVERY, BatchState.OPEN, 0, {})


# configurations, before_enqueue and handlers


@pytest.mark.parametrize(
    "values",
    [
        {"handlers": [{"type": "fileq.scan", "use": "fileq.handlers:checksum"}]},
        {"handlers": [{"type": "x", "use": "fileq.handlers:checksum", "on_completed": "fileq.scan"}]},
        {"handlers": [{"type": "x", "use": "fileq.handlers:checksum", "on_dead": "fileq.webhook"}]},
        {"schedules": {"s": {"cron": "@daily", "type": "fileq.reprocess"}}},
        {"producer": {"deliveries": [{"match": "*/", "complete": {"quiet": "1m"}, "then": "fileq.scan"}]}},
        {"producer": {"deliveries": [{"match": "*/", "complete": {"quiet": "1m"}, "catch": "fileq.scan"}]}},
    ],
    ids=["route", "on_completed", "on_dead", "schedule", "then", "catch"],
)
def test_no_configuration_names_a_type_of_fileqs_own(values: dict[str, Any]) -> None:
    """C1: it is refused when it is read; a job that could not be enqueued would stop its worker."""
    with pytest.raises(ConfigError, match=r"types that begin with 'fileq\.' are fileq's own"):
        config_from(values)


def test_no_task_has_the_name_of_a_type_of_fileqs_own() -> None:
    with pytest.raises(ConfigError, match=r"'fileq\.scan' is reserved"):
        fileq.task("fileq.scan")(lambda job, context: None)


def test_before_enqueue_gives_no_job_a_type_of_fileqs_own(tmp_path: Path) -> None:
    """C1: what a function changes is checked as what a client sends."""
    config = config_from({"broker": "memory"})
    broker = MemoryBroker(config)
    client = fileq.Client.over(BrokerTransport(broker, config))

    def disguise(job: Job) -> Job:
        return job.but(type="fileq.scan")

    kept = dict(EXTENSIONS.before_enqueue)
    fileq.before_enqueue(disguise)
    try:
        with pytest.raises(fileq.FileqError, match=r"type 'fileq\.scan' is reserved"):
            client.enqueue("note")
    finally:
        EXTENSIONS.before_enqueue.clear()
        EXTENSIONS.before_enqueue.update(kept)
    assert broker.census().counters == {}


HANDLERS = """
import fileq


@fileq.handler(type="sly")
def sly(job, context):
    for call in (
        lambda: context.enqueue("fileq.scan", {"dir": "/"}),
        lambda: context.enqueue("note", id="sched.nightly.20260101T000000Z"),
        lambda: context.enqueue("note", id="payroll.then"),
    ):
        try:
            call()
        except fileq.FileqError as error:
            context.log.info("refused", why=str(error))
    context.enqueue("fileq.webhook")


@fileq.handler(type="note")
def note(job, context):
    pass
"""


def test_a_handler_is_refused_while_it_asks_and_its_worker_goes_on(each_setup: WorkerSetup) -> None:
    """C1: an error in the handler, not in the call that settles the jobs of all slots."""
    setup = each_setup
    (setup.directory / "sly_handlers.py").write_text(HANDLERS)
    worker = setup.worker(imports="sly_handlers", max_retries=0)
    setup.enqueue("sly", "a")
    setup.wait_for(State.DEAD, ["a"])
    assert "type 'fileq.webhook' is reserved" in setup.record("a").error
    assert len(worker.events("refused")) == 3
    setup.enqueue("note", "b")
    setup.wait_for(State.COMPLETED, ["b"])
    assert setup.census().drift == 0
    assert worker.stop() == 0


# what another program pushes


def own_job(id: str, type: str, payload: Any) -> bytes:
    return foreign(id, filepath="", filesize=0, type=type, payload=payload)


def test_a_pushed_job_of_a_type_of_fileqs_own_is_dead_before_it_acts(each_setup: WorkerSetup) -> None:
    """C1: a program that only pushes to a queue made workers read, sign and scan for it."""
    setup = each_setup
    secrets = setup.directory / "secrets"
    secrets.mkdir()
    (secrets / "a.txt").write_text("secret")
    setup.enqueue_file(_file(setup, "known.txt"), "known")
    worker = setup.worker(allowed_roots=str(setup.directory))
    setup.wait_for(State.COMPLETED, ["known"])
    pushed = {
        "check": own_job("check", "fileq.delivery_check", CHECK),
        "endless": own_job("endless", "fileq.delivery_check", {**CHECK, "path": "/proc/self/../../dev/zero"}),
        "hook": own_job("hook", "fileq.webhook", {"webhook": "all", "body": {"type": "job.dead"}}),
        "again": own_job("again", "fileq.reprocess", {"match": "**/*"}),
        "scan": own_job("scan", "fileq.scan", {"dir": str(secrets)}),
        "other": own_job("other", "fileq.other", {}),
    }
    setup.push("low", *pushed.values())
    setup.wait_for(State.DEAD, list(pushed))
    for id in pushed:
        error = setup.record(id).error
        assert error.startswith(("refused: another program enqueued this job", "no handler for type")), error
        assert setup.job(id).retries == 0
    assert "environ" not in json.dumps([setup.record(id).error for id in pushed])
    counters = setup.census().counters
    assert (counters["produced"], counters["adopted"], setup.census().drift) == (1, 6, 0)
    assert worker.stop() == 0


def test_a_copy_with_the_id_of_a_job_of_fileq_and_another_payload_is_dead(each_setup: WorkerSetup) -> None:
    """C1: the id of a run of a schedule can be read by many; its origin is of no use for another payload."""
    setup = each_setup
    for name in ("mine", "other"):
        (setup.directory / name).mkdir()
        (setup.directory / name / "a.txt").write_text(name)
    definition = ScheduleDefinition(cron="@yearly", type="fileq.scan", payload={"dir": str(setup.directory / "mine")})
    define(setup.broker, "scan", ScheduleDocument(definition=definition), broker_now_ms(setup.broker))
    id = run_now(setup.broker, setup.config, "scan")
    worker = setup.worker(allowed_roots=str(setup.directory))
    setup.wait_for(State.COMPLETED, [id])
    assert json.loads(setup.record(id).result)["enqueued"] == 1
    before = setup.record(id)
    pushed = own_job(id, "fileq.scan", {"dir": str(setup.directory / "other")})
    for raw in (pushed, before.raw):  # ADV2 3: nor does the same payload run again
        setup.push("low", raw)
        setup.wait_for(State.DEAD, [raw_id(raw)])
        assert setup.record(raw_id(raw)).error == foreign_error(id)
    assert setup.record(id) == before
    [unknown] = setup.broker.lookup([os.fsencode(setup.directory / "other/a.txt")])
    assert (unknown, setup.census().drift) == (None, 0)
    assert worker.stop() == 0


def test_planted_ids_delay_neither_a_slot_nor_a_callback(each_setup: WorkerSetup) -> None:
    """H4: jobs with these ids were pushed and processed before their time; the real ones run all the same."""
    setup = each_setup
    now_ms = broker_now_ms(setup.broker)
    definition = ScheduleDefinition(cron="@every 2s", type="note", payload={"real": True})
    document = ScheduleDocument(definition=definition)
    slots = [next_slot(definition, now_ms=now_ms + ahead * 2000) for ahead in range(100)]
    planted = [job_id_of("nightly", slot_ms) for slot_ms in slots]
    setup.push("low", *(own_job(id, "note", {}) for id in (*planted, "payroll.then")))
    worker = setup.worker()
    setup.wait_for(State.COMPLETED, [*planted, "payroll.then"])
    define(setup.broker, "nightly", document, broker_now_ms(setup.broker))
    transport = BrokerTransport(setup.broker, setup.config)
    transport.create_batch(batch_request(id="payroll", then="note"))
    transport.seal_batch("payroll")

    def is_real(id: str) -> bool:
        job = setup.job(id)
        return bool((job.payload_value or {}).get("real") or job.batch_facts is not UNSET)

    wait_until(lambda: setup.record("payroll.then").state is State.COMPLETED and is_real("payroll.then"), 20)
    wait_until(lambda: any(is_real(id) and setup.record(id).state is State.COMPLETED for id in planted), 20)
    assert setup.broker.schedules()["nightly"].runs >= 1
    assert worker.stop() == 0
    assert setup.census().drift == 0


def test_a_pushed_job_with_the_id_of_a_slot_stops_no_schedule(setup: WorkerSetup) -> None:
    """ADV2 1: a job under the id of the last slot, which never ends, kept all later slots out."""
    definition = ScheduleDefinition(cron="@every 1s", type="note")
    worker = setup.worker()
    define(setup.broker, "tick", ScheduleDocument(definition=definition), broker_now_ms(setup.broker))
    id = setup.wait_logged("note", 1)[0]
    setup.wait_for(State.COMPLETED, [id])
    raw = foreign(id, filepath="", filesize=0, type="fails", payload={}, max_retries=1_000_000)
    setup.push("high", raw)
    setup.wait_for(State.DEAD, [raw_id(raw)])
    setup.wait_logged("note", len(setup.logged("note")) + 3)
    assert (setup.record(id).state, setup.broker.schedules()["tick"].missed) == (State.COMPLETED, 0)
    assert setup.record(raw_id(raw)).error == foreign_error(id)
    assert [event["job_id"] for event in worker.events("job.dead")] == [raw_id(raw)]
    assert worker.stop() == 0
    assert (setup.census().drift, setup.logged("fails")) == (0, [])


@pytest.mark.parametrize("type", ["note", "permanent"])
def test_a_pushed_job_with_the_id_of_a_member_ends_no_batch(setup: WorkerSetup, type: str) -> None:
    """ADV2 2: a job under the id of a member that waits finished the batch of another, or made it fail."""
    setup.broker.pause("low")
    transport = BrokerTransport(setup.broker, setup.config)
    transport.create_batch(batch_request(id="payroll", then="note", catch="note"))
    member = typed_job("note", None, priority="low", now=datetime.now(UTC), id="m").but(batch_id="payroll")
    setup.broker.enqueue([Entry(member, "low", joins=True)])
    transport.seal_batch("payroll")
    worker = setup.worker()
    raw = foreign("m", filepath="", filesize=0, type=type, payload={})
    setup.push("high", raw)
    setup.wait_for(State.DEAD, [raw_id(raw)])
    [view] = setup.broker.batches_by_id(["payroll"])
    assert view is not None
    assert (view.state, view.waiting, view.is_cancelled, view.fired) == (BatchState.SEALED, 1, False, ())
    assert setup.handler_log() == []
    setup.broker.resume("low")
    setup.wait_for(State.COMPLETED, ["m", "payroll.then"])
    assert setup.logged("note") == ["m", "payroll.then"]
    [view] = setup.broker.batches_by_id(["payroll"])
    assert view is not None
    assert (view.state, view.total, view.completed) == (BatchState.FINISHED, 1, 1)
    assert worker.stop() == 0
    assert setup.census().drift == 0


def _file(setup: WorkerSetup, name: str) -> Path:
    path = setup.inbox / name
    path.write_text(f"{name} {datetime.now(UTC)}")
    return path


# jobs of fileq's own that take long


def endless_check(setup: WorkerSetup, id: str, **changes: Any) -> None:
    """Enqueues the check of a file whose checksum takes minutes: a terabyte without a block on the disk."""
    path = setup.inbox / "endless"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    payload = {"directory": str(setup.inbox), "path": str(path), "sha256": "0" * 64}
    job = typed_job(CHECK_TYPE, payload, priority="low", now=datetime.now(UTC), id=id).but(**changes)
    setup.broker.enqueue([Entry(job, "low", is_own=True)])


def test_cancel_and_timeout_end_a_job_of_fileqs_own(sqlite_setup: WorkerSetup) -> None:
    """C1: the slot is free and no thread is left that still reads the file."""
    setup = sqlite_setup
    worker = setup.worker(count=1)

    def threads() -> int:
        return len(os.listdir(f"/proc/{worker.process.pid}/task"))

    endless_check(setup, "first")
    setup.wait_for(State.RUNNING, ["first"])
    setup.broker.cancel(["first"])
    setup.wait_for(State.CANCELLED, ["first"])
    assert worker.events("thread.abandoned") == [], "it stopped by itself"
    before = threads()
    endless_check(setup, "second", timeout=0.2, max_retries=0)
    setup.wait_for(State.DEAD, ["second"])
    assert setup.record("second").error.startswith("timed out after")
    wait_until(lambda: threads() == before, 20)
    setup.enqueue("note", "after")
    setup.wait_for(State.COMPLETED, ["after"])
    assert worker.stop() == 0


def test_the_time_of_a_check_is_that_of_any_job_of_a_file(sqlite_setup: WorkerSetup) -> None:
    """C1: a sender whose manifest lists huge files held a slot for an hour with each, whatever worker.timeout says."""
    setup = sqlite_setup
    worker = setup.worker(count=1, timeout="1s", max_retries=0)
    endless_check(setup, "check")
    setup.wait_for(State.DEAD, ["check"])
    assert setup.record("check").error.startswith("timed out after 1s")
    assert worker.stop() == 0
