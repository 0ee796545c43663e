"""Live events, as clients see them: frames, filters, resuming, slow clients, ticks, sockets, revoked keys, a stop."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from fileq.brokers.types import Entry, Record
from fileq.core.api_key import Scope
from fileq.core.events import ServerWarned
from fileq.testing.conformance.builders import a_job
from tests.support.api_client import API, ServedApi, served_api
from tests.support.dead_jobs import bury
from tests.support.live_client import SocketClient, SseClient
from tests.support.servers.server import Server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("live")) as served:
        yield served


def enqueue(api: ServedApi, type: str) -> str:
    return str(api.client.post("/jobs", {"type": type}).json["id"])


def test_a_client_gets_the_events_it_wants_and_continues_where_it_stopped(api: ServedApi) -> None:
    with SseClient(api.client) as first, SseClient(api.client, events="job.cancel*", type="b") as filtered:
        assert first.answer.headers["content-type"].startswith("text/event-stream")
        before = enqueue(api, "a")
        frame = first.wait_for_event("job.created")
        assert (frame.data["job_id"], frame.data["event"], frame.data["type"]) == (before, "job:created", "a")
    after = enqueue(api, "b")
    with SseClient(api.client, {"Last-Event-ID": frame.id}) as again:
        assert again.wait_for_event("job.created").data["job_id"] == after
    for unknown in ("00000000-1", "nonsense", f"{frame.id[:8]}-999999"):
        with SseClient(api.client, {"Last-Event-ID": unknown}) as lost:
            assert lost.wait_for_event("reset").data["reason"], unknown
    assert filtered.frames == []


def test_streams_of_many_batches_read_each_record_once(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """N9: each stream with another batch read the records of the same jobs, all at the same time."""
    read = list[str]()
    records = api.broker.records

    def counted(ids: Sequence[str]) -> list[Record | None]:
        read.extend(ids)
        return records(ids)

    monkeypatch.setattr(api.broker, "records", counted)
    with ExitStack() as stack:
        streams = [stack.enter_context(SseClient(api.client, batch=f"many-{n}")) for n in range(8)]
        jobs = [a_job(f"member-{n}", batch_id=f"many-{n}") for n in range(8)]
        api.broker.enqueue([Entry(job, "low") for job in jobs])
        for n, stream in enumerate(streams):
            assert stream.wait_for_event("job.created").data["job_id"] == f"member-{n}"
    assert sorted(one for one in read if one.startswith("member-")) == sorted(job.id for job in jobs)


def test_a_stream_of_a_batch_continues_only_where_batches_were_known(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        with SseClient(api.client) as first:
            after = [enqueue(api, "a"), enqueue(api, "b")][1]
            before = first.wait_for_event("job.created").id
            first.wait_for(lambda frame: frame.data["job_id"] == after)
            with SseClient(api.client, {"Last-Event-ID": before}, batch="b1") as batch:
                assert batch.wait_for_event("reset")
                api.broker.enqueue(
                    [Entry(a_job("one", batch_id="b1"), "low"), Entry(a_job("two", batch_id="b1"), "low")]
                )
                wait_until(lambda: batch.names().count("job.created") == 2, 20)
        known = next(frame.id for frame in batch.frames if frame.event == "job.created")
        with SseClient(api.client, {"Last-Event-ID": known}, batch="b1") as again:
            assert again.wait_for_event("job.created").data["job_id"] == "two"


def test_filters_choose_by_name_path_and_batch(api: ServedApi) -> None:
    with (
        SseClient(api.client, events="job:cancelled") as cancelled,
        SseClient(api.client, batch="b1") as batch,
        SseClient(api.client, match="/data/**/*.pdf") as below,
    ):
        id = enqueue(api, "x")
        api.client.delete(f"/jobs/{id}")
        jobs = [a_job("other", filepath="/data/x/a.txt"), a_job("wanted", filepath="/data/x/a.pdf", batch_id="b1")]
        api.broker.enqueue([Entry(job, "low") for job in jobs])
        assert cancelled.wait_for_event("job.cancelled").data["job_id"] == id
        assert batch.wait_for_event("job.created").data["job_id"] == "wanted"
        assert below.wait_for_event("job.created").data["job_id"] == "wanted"
        assert (cancelled.names(), len(batch.frames), len(below.frames)) == (["job.cancelled"], 1, 1)
    for query in ("events=job.born", "match={1..9999}", "mode=all", "colour=red"):
        assert api.client.call("GET", f"/events?{query}").slug == "invalid", query
    assert api.client.call("GET", "/events", headers={"Accept": "application/json"}).slug == "not-acceptable"
    assert api.client.send("HEAD", f"{API}/events").status == 200


def test_ticks_count_what_changed(api: ServedApi) -> None:
    with SseClient(api.client, mode="ticks") as ticks:
        for _ in range(20):
            enqueue(api, "t")
        wait_until(lambda: sum(frame.data["events"].get("job.created", 0) for frame in ticks.frames) == 20, 20)
        assert set(ticks.names()) == {"tick"}
        assert ticks.frames[0].data["queues"] == ["low"]


def test_a_socket_has_the_same_events_key_and_origin_rules(api: ServedApi) -> None:
    key = {"X-API-Key": api.client.key}
    foreign = {**key, "Origin": "https://evil.example"}
    assert SocketClient(api.client.port, f"{API}/ws", foreign).status == 403
    assert SocketClient(api.client.port, f"{API}/ws", {}).status == 401
    assert SocketClient(api.client.port, f"{API}/ws", {"X-API-Key": api.client_with(Scope.ENQUEUE).key}).status == 403
    assert SocketClient(api.client.port, f"{API}/ws?colour=red", key).status == 422
    assert api.client.call("GET", "/ws").slug == "upgrade-required"
    own = {**key, "Origin": f"http://127.0.0.1:{api.client.port}"}
    opened = SocketClient(api.client.port, f"{API}/ws?events=job.created", own)
    assert opened.status == 0
    ids = [enqueue(api, "s") for _ in range(3)]
    assert [opened.next()["job_id"] for _ in range(3)] == ids
    opened.close()


def test_a_revoked_key_ends_its_streams(api: ServedApi) -> None:
    made = api.client.post("/keys", {"name": "reader", "scopes": ["read"]}).json
    with SseClient(api.client.with_key(made["key"])) as stream:
        api.client.delete(f"/keys/{made['id']}")
        wait_until(lambda: not stream.is_open, 20)


def test_a_client_that_does_not_read_gets_lag_and_delays_no_stop(tmp_path: Path) -> None:
    with served_api(tmp_path, {"broker": "memory"}) as api, SseClient(api.client) as quick:
        slow, stuck = open_without_reading(api), open_without_reading(api)
        for number in range(30):
            jobs = [a_job(f"{number}-{i}", filepath=f"/{'d' * 600}/{i}") for i in range(500)]
            api.broker.enqueue([Entry(job, "low") for job in jobs])

        def received() -> int:
            frames = list(quick.frames)
            return sum(frame.data["dropped"] if frame.event == "lag" else 1 for frame in frames)

        wait_until(lambda: received() == 15_000, 30, "every event has arrived or is reported as dropped")
        text = b""
        while b"event: lag" not in text:
            text = text[-20:] + slow.recv(1 << 16)
    assert not quick.is_open
    warned = [event for event in api.events if isinstance(event, ServerWarned)]
    assert warned == [], "uvicorn reports a client for which a stop had to wait"
    stuck.close()
    slow.close()


def open_without_reading(api: ServedApi) -> socket.socket:
    """A stream of which only the first bytes are read; the kernel keeps few more."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(20)
    opened.connect(("127.0.0.1", api.client.port))
    request = f"GET {API}/events HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {api.client.key}\r\n\r\n"
    opened.sendall(request.encode())
    assert b" 200 " in opened.recv(15)
    return opened


def test_clients_that_leave_during_a_flood_leave_no_stream_and_no_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fileq.server.event_hub.LINGER_S", 0.0)
    monkeypatch.setattr("fileq.server.event_hub.CHECK_S", 0.1)
    with served_api(tmp_path, {"broker": "memory"}) as api:
        opened = [open_without_reading(api) for _ in range(40)]
        is_over = threading.Event()

        def flood() -> None:
            for number in itertools.takewhile(lambda _: not is_over.is_set(), itertools.count()):
                api.broker.enqueue([Entry(a_job(f"{number}-{i}"), "low") for i in range(20)])

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            for one in opened:
                one.recv(100)
                one.close()
            wait_until(lambda: not api.broker.store.subscriptions, 20, "no subscription is left")
        finally:
            is_over.set()
            flooding.join()


def test_after_an_outage_clients_are_told_and_get_events_again(tmp_path: Path, valkey: Server) -> None:
    values = {"broker": "redis", "redis": {"addr": valkey.address}}
    with served_api(tmp_path, values) as api, SseClient(api.client) as stream:
        assert subscribers(valkey) == 1
        with SseClient(api.client):
            assert subscribers(valkey) == 1, "one subscription serves all clients"
        valkey.restart()
        stream.wait_for_event("reset")
        assert wait_until(lambda: enqueue_or_none(api), 20)
        stream.wait_for_event("job.created")


def subscribers(server: Server) -> int:
    with server.client() as client:
        return sum(count for _, count in client.pubsub_numsub("jobqueue:events"))


def enqueue_or_none(api: ServedApi) -> str | None:
    reply = api.client.post("/jobs", {"type": "after"})
    return reply.json["id"] if reply.status == 201 else None


def test_a_server_that_hides_paths_shows_none_in_events_and_answers(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    with served_api(tmp_path, {"server": {"files": "none"}}) as api, SseClient(api.client) as stream:
        made = api.client.post("/jobs", {"path": str(tmp_path / "secret.txt")})
        assert made.status == 201
        assert stream.wait_for_event("job.created").data["filepath"] == ""
        assert "secret" not in made.body.decode()
        for path in ("/events?match=*", "/jobs?match=*", "/dead/groups?match=*"):
            assert api.client.call("GET", path).slug == "invalid", path
        chosen = {"action": "cancel", "filter": {"match": "*"}, "dry_run": True}
        assert api.client.post("/jobs/actions", chosen).slug == "invalid"
        bury(api.broker, error=f"OSError: {tmp_path}/secret.txt is gone")
        id = made.json["id"]
        for path in ("/jobs", f"/jobs/{id}", "/dead", "/dead/groups", "/jobs?q=is+gone", "/dead?error=%E2%80%A6+is"):
            answer = api.client.call("GET", path).body.decode()
            assert (id in answer, "secret" in answer) == (True, False), path
        for path in ("/jobs?q=secret.txt", "/dead?error=secret"):
            assert api.client.get(path)["jobs"] == [], "paths could be guessed"
