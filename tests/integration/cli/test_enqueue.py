"""`fileq enqueue`: what is queued, what is printed, and what is refused before anything is queued."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from fileq.brokers.sqlite import SqliteBroker
from fileq.brokers.types import Enqueued, Entry
from fileq.cli import main
from fileq.client import broker_transport
from fileq.commands.enqueue import entries_for
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.core.job import MAX_JOB_BYTES, Job, decode
from fileq.queries.documents import JobDocument
from tests.support.producer_setup import BrokerSetup
from tests.support.program import command, environment, run
from tests.support.unprivileged import open_path, unprivileged
from tests.support.worker_setup import WorkerSetup

__all__ = ["open_path"]


class Output(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def _no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)


def enqueue(broker_setup: BrokerSetup, *arguments: str, code: int = 0, **settings: object) -> Output:
    """Runs `fileq enqueue` in this process, which is faster than starting another."""
    named = {key.replace("__", "."): value for key, value in settings.items()}
    chosen = {"producer.scan_dir": broker_setup.inbox, **broker_setup.settings, **named}
    sets = [f"--set={key}={value}" for key, value in chosen.items()]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(broker_setup.directory), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["enqueue", *arguments, *sets]) == code, err.getvalue()
    return Output(out.getvalue(), err.getvalue())


def job_of(broker_setup: BrokerSetup, id: str) -> Job:
    with broker_setup.open() as broker:
        record = broker.records([id])[0]
        assert record is not None
        return decode(record.raw)


def test_files_become_jobs_and_their_ids_are_printed_one_on_each_line(broker_setup: BrokerSetup) -> None:
    pdf, txt = broker_setup.write("a.pdf", b"four"), broker_setup.write("b.txt")
    ids = enqueue(broker_setup, os.fsdecode(pdf), os.fsdecode(txt)).stdout.split()
    first, second = job_of(broker_setup, ids[0]), job_of(broker_setup, ids[1])
    assert (first.path, first.filesize, first.priority) == (pdf, 4, "high")
    assert (second.path, second.priority) == (txt, "low")
    assert first.batch_id == second.batch_id is not None
    assert len(broker_setup.jobs()) == 2


def test_a_producer_does_not_enqueue_that_version_again_but_the_command_does(broker_setup: BrokerSetup) -> None:
    path = broker_setup.write("a.txt")
    enqueue(broker_setup, "in/a.txt")
    again = enqueue(broker_setup, "in/a.txt").stdout.strip()
    assert len(broker_setup.jobs()) == 2
    settings = {**broker_setup.all_settings(), "producer.settle_unclosed": "0s"}
    ended = run("producer", "--once", str(broker_setup.inbox), cwd=broker_setup.directory, settings=settings)
    assert "already known 1" in ended.stdout, ended.stderr
    assert len(broker_setup.jobs()) == 2
    with broker_setup.open() as broker:
        known = broker.lookup([path])[0]
        assert known is not None
        assert known.versions[0][1] == again
        assert known.device


def test_a_file_named_through_a_link_gets_the_path_of_the_producer(broker_setup: BrokerSetup) -> None:
    path = broker_setup.write("deep/a.txt")
    (broker_setup.directory / "way").symlink_to(broker_setup.inbox / "deep")
    id = enqueue(broker_setup, "way/a.txt").stdout.strip()
    assert job_of(broker_setup, id).path == path


def test_a_name_that_is_not_utf8_or_has_a_line_break_is_enqueued(broker_setup: BrokerSetup) -> None:
    path = broker_setup.write(b"\xff\n.txt")
    id = enqueue(broker_setup, os.fsdecode(path)).stdout.strip()
    assert job_of(broker_setup, id).path == path


def test_options_reach_the_job(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a.pdf")
    options = ["--priority", "low", "--max-retries", "0", "--timeout", "1m30s", "--delay", "1h", "--id", "mine"]
    assert enqueue(broker_setup, "in/a.pdf", *options).stdout == "mine\n"
    job = job_of(broker_setup, "mine")
    assert (job.priority, job.max_retries, job.timeout, job.batch_id) == ("low", 0, 90.0, None)
    assert job.process_at is not None
    with broker_setup.open() as broker:
        assert broker.census().scheduled == 1


def test_a_job_waits_for_a_time_in_the_future_and_not_for_one_in_the_past(broker_setup: BrokerSetup) -> None:
    enqueue(broker_setup, "--type", "t", "--at", "2999-01-01T00:00:00Z", "--id", "later")
    enqueue(broker_setup, "--type", "t", "--at", "2001-01-01 00:00", "--id", "now")
    with broker_setup.open() as broker:
        later, now = broker.records(["later", "now"])
        assert later is not None
        assert now is not None
        assert (later.state, later.due_ms, now.state) == ("scheduled", 32472144000000, "pending")


def test_a_time_without_a_zone_is_local_and_is_printed_with_its_zone(
    broker_setup: BrokerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    ended = run(
        *("enqueue", "--type", "t", "--id", "later", "--at", "2999-01-01T09:00"),
        cwd=broker_setup.directory,
        settings=broker_setup.settings,
    )
    assert (ended.returncode, ended.stdout) == (0, "later\n")
    assert ended.stderr == "fileq: --at has no time zone; using local time: 2999-01-01T09:00:00+09:00\n"
    assert job_of(broker_setup, "later").process_at == "2999-01-01T00:00:00.000Z"


def test_a_time_with_a_zone_needs_no_remark_and_one_in_the_past_gets_one(broker_setup: BrokerSetup) -> None:
    assert enqueue(broker_setup, "--type", "t", "--at", "2999-01-01T00:00+02:00").stderr == ""
    said = enqueue(broker_setup, "--type", "t", "--at", "2001-01-01T00:00Z").stderr
    assert said.startswith("fileq: --at is in the past, ")
    assert said.endswith(" ago; the job is due at once\n")
    assert enqueue(broker_setup, "--type", "t", "--at", "2001-01-01T00:00Z", "-q").stderr == ""


def test_the_same_id_twice_is_one_job_and_no_failure(broker_setup: BrokerSetup) -> None:
    assert enqueue(broker_setup, "--type", "t", "--id", "once").stdout == "once\n"
    again = enqueue(broker_setup, "--type", "t", "--id", "once")
    assert again.stdout == "once\n"
    assert "nothing was enqueued" in again.stderr
    assert [job.id for job in broker_setup.jobs()] == ["once"]
    fate = json.loads(enqueue(broker_setup, "--type", "t", "--id", "once", "--json").stdout)["jobs"][0]["fate"]
    assert fate == "duplicate"


def test_a_type_and_a_payload_make_a_job_without_a_file(broker_setup: BrokerSetup) -> None:
    enqueue(broker_setup, "--type", "report", "--payload", '{"n": [1, 2.50, "é"]}', "--id", "r")
    job = job_of(broker_setup, "r")
    assert (job.type, job.filepath, job.payload_value) == ("report", "", {"n": [1, 2.5, "é"]})


def test_json_lists_every_job(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a.txt")
    report = json.loads(
        enqueue(broker_setup, "in/a.txt", '{"command": "ls"}', "--json", "--at", "2999-01-01T00:00Z").stdout
    )
    assert set(report) == {"jobs", "batch_id"}
    file, line = report["jobs"]
    assert file.keys() == {*JobDocument.__struct_fields__, "fate"}
    assert (file["fate"], file["status"], file["path"]) == ("enqueued", "scheduled", str(broker_setup.inbox / "a.txt"))
    assert (file["type"], file["queue"], file["scheduled_at"]) == (None, "low", "2999-01-01T00:00:00.000Z")
    assert (line["type"], line["path"]) == ("command", None)
    assert job_of(broker_setup, line["id"]).batch_id == report["batch_id"]


def test_a_job_as_json_keeps_its_options(broker_setup: BrokerSetup) -> None:
    line = {"command": "ls -l", "id": "mine", "max_retries": 0, "priority": "high", "timeout": 90, "delay": "1h"}
    due = {"command": ["ls"], "id": "due", "run_at": "2999-01-01T00:00Z"}
    typed = {"type": "report", "payload": {"month": 1}, "id": "typed", "timeout": "5s", "priority": None}
    said = enqueue(broker_setup, *map(json.dumps, (line, due, typed)), "--timeout", "5s", code=2).stderr
    assert "--timeout contradicts" in said, "of the first one"
    shown = enqueue(broker_setup, *map(json.dumps, (line, due, typed)), "--max-retries", "0").stdout
    assert shown.split() == ["mine", "due", "typed"]
    job = job_of(broker_setup, "mine")
    assert (job.type, job.payload_value) == ("command", {"command": "ls -l"})
    assert (job.max_retries, job.priority, job.timeout) == (0, "high", 90.0)
    assert job.process_at is not None
    assert job_of(broker_setup, "due").process_at == "2999-01-01T00:00:00.000Z"
    job = job_of(broker_setup, "typed")
    assert (job.type, job.payload_value, job.timeout, job.max_retries) == ("report", {"month": 1}, 5.0, 0)


def test_the_run_at_of_a_job_as_json_is_remarked_as_at_is(broker_setup: BrokerSetup) -> None:
    said = enqueue(broker_setup, '{"type": "t", "run_at": "2001-01-01T00:00"}').stderr
    assert "fileq: run_at has no time zone; using local time: 2001-01-01T00:00:00" in said
    assert "fileq: run_at is in the past, " in said


def test_an_enqueued_command_is_run_by_a_worker_that_allows_commands(sqlite_setup: WorkerSetup) -> None:
    order = json.dumps({"command": f"echo done > {sqlite_setup.directory}/proof"})
    ended = run("enqueue", order, cwd=sqlite_setup.directory, settings=sqlite_setup.settings)
    assert "allow_commands is false here" in ended.stderr
    sqlite_setup.worker(allow_commands=True)
    sqlite_setup.wait_ended([ended.stdout.strip()])
    assert (sqlite_setup.directory / "proof").read_text() == "done\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to enqueue"),
        (["in/none"], "'in/none' can't be enqueued: there is no such file"),
        (["in"], "'in' can't be enqueued: it is a directory"),
        (["none"], "'none' can't be enqueued: there is no such file"),
        (["none/in/it"], "'none/in/it' can't be enqueued: there is no such file"),
        (["outside"], "outside' leads outside the allowed roots"),
        (["in/way-out"], "leads outside the allowed roots"),
        ([""], "PATH is empty; pass a value"),
        (["in/pipe"], "'in/pipe' can't be enqueued: it is not a regular file"),
        (["in/a", "--priority", "hgih"], "--priority is 'hgih'; it must be one of high, low"),
        (["in/a", "in/a", "--id", "x"], "--id is 'x', but there are 2 jobs to enqueue"),
        (["in/a", "--id", "a b"], "--id 'a b' can't be used"),
        (["in/a", "--id", ""], "--id is empty"),
        (["in/a", "--type", "t"], "--type enqueues a job without a file; omit --type or 'in/a'"),
        (["in/a", "--payload", "{}"], "--payload needs --type"),
        (["--type", "t", "--payload", "{"], "--payload is '{'; it must be JSON"),
        (["--type", ""], "--type is empty; pass a value, or omit it"),
        (["{broken"], "the argument is '{broken'; it must be JSON"),
        (["--type", "t", "--payload", '{"a": [{"b": 1, "b": 2}]}'], "the key 'b' is given twice"),
        (['{"command": "ls", "command": "df"}'], "the key 'command' is given twice"),
        (['{"type": "t", "payload": {"a": 1, "a": 2}}'], "the key 'a' is given twice"),
        (['{"id": "x", "command": "a"}', '{"id": "x", "command": "b"}'], "id 'x' is given to two jobs"),
        (['{"id": "x"}'], "it must have a command"),
        (['{"command": "ls", "type": "t"}'], "it must have a command"),
        (['{"command": "ls", "payload": 1}'], "it must have a command"),
        (['{"command": " "}'], "the command is empty"),
        (['{"comand": "ls"}'], "the key 'comand' is unknown; did you mean 'command'?"),
        (['{"command": "ls", "max_retry": 3}'], "the key 'max_retry' is unknown; did you mean 'max_retries'?"),
        (['{"command": "ls", "maxRetries": 3}'], "did you mean 'max_retries'?"),
        (['{"command": "ls", "colour": 3}'], "known: command, type, payload, id, priority, max_retries, timeout"),
        (['{"command": "ls", "max_retries": "3"}'], "max_retries: Expected `int | null`, got `str`"),
        (['{"command": "ls", "max_retries": -1}'], "max_retries is -1; it must be a whole number"),
        (['{"command": "ls", "timeout": 0}'], "timeout is 0; it must be longer than 0"),
        (['{"command": "ls", "delay": "5"}'], "delay is '5'; it must be a duration with its unit"),
        (['{"command": "ls", "run_at": "noon"}'], "run_at is 'noon'; it must be a time such as"),
        (['{"command": "ls", "run_at": "2999-01-01", "delay": 5}'], "delay and run_at are both set"),
        (['{"command": "ls", "priority": "hgih"}'], "priority is 'hgih'; it must be one of high, low"),
        (['{"command": "ls", "id": "a b"}'], "id 'a b' can't be used"),
        (['{"command": "ls", "id": ""}'], "id is empty"),
        (['{"command": "ls", "id": "a"}', "--id", "b"], "--id contradicts the JSON of a job"),
        (['{"command": "ls", "delay": 5}', "--at", "2999-01-01"], "--at contradicts the JSON of a job"),
        (['{"command": "ls", "max_retries": 0}', "--max-retries", "1"], "--max-retries contradicts the JSON"),
        (["in/a", "--delay", "5"], "--delay is '5'; it must be a duration with its unit, such as 5s"),
        (["in/a", "--delay", "5s", "--at", "2999-01-01"], "--at can't be used with --delay"),
        (["in/a", "--at", "noon"], "--at is 'noon'; it must be a time such as"),
        (["in/a", "--max-retries", "-1"], "--max-retries is '-1'; it must be a whole number"),
        (["in/a", "--timeout", "0"], "--timeout is 0"),
        (["in/a", "--jsn"], "did you mean '--json'?"),
    ],
)
def test_an_error_is_one_line_and_exit_2_and_nothing_is_queued(
    arguments: list[str],
    said: str,
    on_sqlite: BrokerSetup,
) -> None:
    on_sqlite.write("a")
    (on_sqlite.directory / "outside").touch()
    (on_sqlite.inbox / "way-out").symlink_to(on_sqlite.directory / "outside")
    os.mkfifo(on_sqlite.inbox / "pipe")
    ended = enqueue(on_sqlite, *arguments, code=2)
    assert ended.stdout == ""
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (on_sqlite.directory / "fileq.db").exists()


def test_one_wrong_path_prevents_all_jobs_and_every_wrong_path_is_reported(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a")
    ended = enqueue(broker_setup, "in/a", "in/none", "/etc/passwd", code=2)
    assert len(ended.stderr.splitlines()) == 2
    assert broker_setup.jobs() == []


def test_the_database_itself_is_refused(on_sqlite: BrokerSetup) -> None:
    enqueue(on_sqlite, "--type", "t")
    ended = enqueue(on_sqlite, "fileq.db", code=2, worker__allowed_roots=f"[{on_sqlite.directory}]")
    assert "belongs to fileq's own database" in ended.stderr


def test_a_mapped_file_gets_the_path_of_the_producer(on_sqlite: BrokerSetup) -> None:
    on_sqlite.write("a")
    id = enqueue(
        on_sqlite, "in/a", producer__scan_dir="/far/inbox", worker__path_map=f"{{/far/inbox: {on_sqlite.inbox}}}"
    ).stdout.strip()
    assert job_of(on_sqlite, id).filepath == "/far/inbox/a"


def test_jobs_that_were_enqueued_before_an_outage_are_printed(
    on_sqlite: BrokerSetup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database is removed between two batches."""
    for n in range(4):
        on_sqlite.write(f"{n}")
    monkeypatch.chdir(on_sqlite.directory)
    monkeypatch.setattr(broker_transport, "BATCH", 2)
    real = SqliteBroker.enqueue

    def once(broker: SqliteBroker, entries: Sequence[Entry]) -> Enqueued:
        done = real(broker, entries)
        (on_sqlite.directory / "fileq.db").unlink()
        return done

    monkeypatch.setattr(SqliteBroker, "enqueue", once)
    assert main(["enqueue", *(f"in/{n}" for n in range(4)), "--set", "producer.scan_dir=in"]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "was removed or replaced while in use" in shown.err


def test_a_broker_that_refuses_is_exit_4_and_one_line(on_sqlite: BrokerSetup) -> None:
    on_sqlite.write("a")
    ended = enqueue(on_sqlite, "in/a", code=4, redis__addr="127.0.0.1:1")
    assert len(ended.stderr.splitlines()) == 1
    assert "127.0.0.1:1" in ended.stderr


def test_the_memory_broker_is_refused(on_sqlite: BrokerSetup) -> None:
    assert "broker is 'memory'" in enqueue(on_sqlite, "--type", "t", code=2, broker="memory").stderr


def test_the_reader_of_stdout_may_exit_early(on_sqlite: BrokerSetup) -> None:
    files = [os.fsdecode(on_sqlite.write(f"{n}")) for n in range(600)]
    settings = {"producer.scan_dir": on_sqlite.inbox, **on_sqlite.settings}
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        command("enqueue", *files, settings=settings),
        cwd=on_sqlite.directory,
        env=environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(on_sqlite.jobs()) == 600


def test_a_payload_that_is_too_long_is_refused_with_its_size_the_limit_and_what_to_do(
    broker_setup: BrokerSetup,
) -> None:
    payload = json.dumps("x" * MAX_JOB_BYTES)
    refused = enqueue(broker_setup, "--type", "t", "--payload", payload, "--id", "long", code=1)
    assert refused.stderr.strip().endswith(
        f"the payload of job long has {len(payload)} bytes; at most {MAX_JOB_BYTES} (16MB) can be enqueued: "
        "put the data into a file and its path into the payload"
    )
    with broker_setup.open() as broker:
        assert broker.records(["long"]) == [None]


def test_a_file_without_permission_is_named_without_the_class_of_an_error(open_path: Path) -> None:
    (open_path / "closed").mkdir()
    (open_path / "closed" / "a").touch()
    (open_path / "closed").chmod(0)
    config = config_from({"producer": {"scan_dir": str(open_path)}})
    with unprivileged(), pytest.raises(ConfigError) as caught:
        entries_for(config, [str(open_path / "closed" / "a")], {})
    assert str(caught.value) == f"'{open_path}/closed/a' can't be enqueued: this user has no permission to read it"


def test_an_empty_manifest_is_reported(on_sqlite: BrokerSetup) -> None:
    enqueue(on_sqlite, "--type", "t")
    (on_sqlite.directory / "list").touch()
    ended = run("batch", "create", "--manifest", "list", cwd=on_sqlite.directory, settings=on_sqlite.settings)
    assert ended.stderr == "fileq: list lists no files: the batch is empty and already finished\n"


def test_a_new_database_in_a_wrong_directory_is_a_warning_once(tmp_path: Path) -> None:
    for batch in ((), ("--batch", "nightly")):
        (directory := tmp_path / f"in{len(batch)}").mkdir()
        ended = run("enqueue", "--type", "report", *batch, cwd=directory)
        assert ended.returncode == 0, ended.stderr
        warning = f"fileq: warning: no configuration file in {directory}: a new database is created, "
        assert ended.stderr.count(warning) == 1
        assert "new database" not in run("enqueue", "--type", "report", cwd=directory).stderr
    (beside := tmp_path / "beside").mkdir()
    (beside / "config.yaml").write_text("broker: sqlite")
    assert "new database" not in run("enqueue", "--type", "report", cwd=beside).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("keys", "create", "k", "--scope", "read"),
        ("webhook", "add", "w", "https://example.org/w", "--event", "job.dead"),
        ("schedule", "add", "s", "@daily", "--type", "t"),
    ],
)
def test_what_is_defined_in_a_new_database_in_a_wrong_directory_is_a_warning_once(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    warning = f"fileq: warning: no configuration file in {tmp_path}: a new database is created, {tmp_path / 'fileq.db'}"
    assert run(*words, cwd=tmp_path).stderr.count(warning) == 1
    assert "new database" not in run(words[0], "list", cwd=tmp_path).stderr


def test_a_key_that_expires_at_once_is_refused(tmp_path: Path) -> None:
    refused = run("keys", "create", "k", "--scope", "read", "--expires", "0", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (2, "fileq: --expires is 0; it must be longer than 0\n")
    assert not (tmp_path / "fileq.db").exists()
