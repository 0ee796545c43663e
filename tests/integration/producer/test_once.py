"""`fileq producer --once`: one scan, a summary, and a progress line on a terminal."""

import os
import re
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

from fileq.core.units import parse_duration
from tests.support.producer_setup import BrokerSetup
from tests.support.program import command, run
from tests.support.terminal import Terminal


def once(broker_setup: BrokerSetup, **settings: object) -> subprocess.CompletedProcess[str]:
    return run(
        "producer",
        str(broker_setup.inbox),
        "--once",
        cwd=broker_setup.directory,
        settings=broker_setup.all_settings(**settings),
    )


def test_every_file_is_enqueued_and_a_summary_printed(broker_setup: BrokerSetup) -> None:
    for name in ("a.pdf", "x/b", "x.tmp", "x/y.tmp"):
        broker_setup.write(name)
    os.mkfifo(broker_setup.inbox / "pipe")
    first = once(broker_setup)
    assert first.returncode == 0, first.stderr
    assert re.fullmatch(
        r"found 2, enqueued 2, already known 0, skipped 2 \(excluded\), skipped 1 \(special\) in (\d+\.\ds|\d+ms)\n",
        first.stdout,
    )
    assert "\x1b" not in first.stderr, "a progress line without a terminal"
    assert first.stderr.count("job.produced") == 2
    assert broker_setup.names() == ["a.pdf", "x/b"]
    again = once(broker_setup)
    assert again.stdout.startswith("found 2, enqueued 0, already known 2,")
    assert broker_setup.names() == ["a.pdf", "x/b"]


def test_a_new_database_of_a_producer_in_a_wrong_directory_is_a_warning_once(tmp_path: Path) -> None:
    configured, elsewhere, bare = (tmp_path / name for name in ("configured", "elsewhere", "bare"))
    for directory in (configured, elsewhere, bare):
        (directory / "in").mkdir(parents=True)
    (configured / "config.yaml").write_text("broker: sqlite")

    def warnings(cwd: Path, *arguments: str, role: str = "producer") -> list[str]:
        ended = run(role, "in", "--once", *arguments, cwd=cwd)
        assert ended.returncode == 0, ended.stderr
        return [line for line in ended.stderr.splitlines() if "database.created" in line]

    assert warnings(bare, role="all") == []
    (bare / "fileq.db").unlink()
    [warning] = warnings(bare)
    assert f"no configuration file in {bare}: a new database is created, {bare / 'fileq.db'}" in warning
    assert "give --config or FILEQ_CONFIG" in warning
    assert warnings(bare) == []

    config = str(configured / "config.yaml")
    [warning] = warnings(elsewhere, "--config", config)
    assert f"sqlite.path of {config} is relative to the working directory" in warning
    assert warnings(elsewhere, "--config", config) == []
    assert warnings(configured) == []
    assert warnings(tmp_path / "bare", "--set", "sqlite.path=chosen.db") == []


def test_no_http_endpoint_is_opened(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a")
    ended = once(broker_setup, observability__metrics_port=1)
    assert ended.returncode == 0, ended.stderr
    assert "http." not in ended.stderr


def test_an_empty_directory_takes_less_than_a_second(on_sqlite: BrokerSetup) -> None:
    assert once(on_sqlite).stdout.endswith("ms\n")


def test_a_file_that_is_still_being_written_is_waited_for(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    writing = threading.Event()

    def write() -> None:
        with open(broker_setup.inbox / "a", "wb", buffering=0) as file:
            for _ in range(40):
                file.write(b"x")
                writing.set()
                threading.Event().wait(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    writing.wait()
    ended = once(broker_setup, settle_unclosed="500ms")
    writer.join()
    assert ended.returncode == 0
    assert "enqueued 1" in ended.stdout
    assert [job.filesize for job in broker_setup.jobs()] == [40]


def on_terminal(broker_setup: BrokerSetup, **settings: object) -> Terminal:
    arguments = command("producer", str(broker_setup.inbox), "--once", settings=broker_setup.all_settings(**settings))
    return Terminal(arguments, broker_setup.directory)


def show(broker_setup: BrokerSetup, **settings: object) -> tuple[str, str]:
    return on_terminal(broker_setup, **settings).finish()


def test_the_progress_line_names_the_rate_limit_that_slows_the_producer_down(broker_setup: BrokerSetup) -> None:
    for n in range(30):
        broker_setup.write(str(n))
    out, shown = show(broker_setup, rate_limit_per_sec=15)
    assert out.startswith("found 30, enqueued 30,")
    assert "\x1b" in shown
    assert "held by producer.rate_limit_per_sec (shared: jobqueue:rate_limit:producer)" in shown
    assert "job.produced" not in shown, "the progress line counts them already"
    assert "broker.opened" in shown


def test_a_setting_that_does_not_slow_the_producer_down_is_not_mentioned(on_sqlite: BrokerSetup) -> None:
    (on_sqlite.inbox / "a").touch()

    def touch() -> None:  # the file has to wait, no matter how long the start and the first line take
        os.utime(on_sqlite.inbox / "a", (time.time() + 60, time.time() + 60))

    touch()
    with closing(on_terminal(on_sqlite, settle_unclosed="500ms", max_pending=1000)) as terminal:
        terminal.wait_shown("still being written 1", meanwhile=touch)
        out, shown = terminal.finish()
    assert out.startswith("found 1, enqueued 1,")
    assert "held back" not in shown


def test_a_warning_is_shown_next_to_the_progress_line(on_sqlite: BrokerSetup) -> None:
    on_sqlite.write("a")
    (on_sqlite.inbox / "out").symlink_to("/etc/passwd")
    _, shown = show(on_sqlite, follow_symlinks="true", settle_unclosed="300ms")
    assert "file.skipped" in shown


def test_a_file_that_was_copied_with_its_old_time_does_not_wait(broker_setup: BrokerSetup) -> None:
    path = broker_setup.inbox / "copied"
    path.write_bytes(b"complete")
    os.utime(path, (time.time() - 3600, time.time() - 3600))  # as `cp -p` and `tar` do
    ended = once(broker_setup, settle_unclosed="20s")
    assert ended.returncode == 0, ended.stderr
    found = re.fullmatch(r"found 1, enqueued 1, already known 0 in (\d+\.\ds|\d+ms)\n", ended.stdout)
    assert found is not None, ended.stdout
    assert parse_duration(found[1]) < 10


def test_a_file_with_a_recent_time_waits(broker_setup: BrokerSetup) -> None:
    (broker_setup.inbox / "fresh").write_bytes(b"perhaps not complete")
    ended = once(broker_setup, settle_unclosed="2s")
    found = re.fullmatch(r"found 1, enqueued 1, already known 0 in (\d+\.\ds|\d+ms)\n", ended.stdout)
    assert found is not None, ended.stdout
    assert parse_duration(found[1]) >= 1.9
