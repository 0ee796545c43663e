"""Arguments that are no text, numbers and times out of bounds, and characters that control a terminal."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fileq.brokers.types import Entry
from fileq.core.job import file_job
from fileq.core.text import printable_json, printable_lines
from fileq.observe.logs import ConsoleLine
from tests.support.command_line import CommandLine
from tests.support.program import command, environment, run
from tests.support.worker_setup import WorkerSetup

# C1: CSI and NEL; DEL; right-to-left override and isolate; zero width space; a tag beyond the first plane.
HOSTILE = "\x9b31m\x85\x7f\u202e\u2067\u200b\U000e0041"
ESCAPED = "\\u009b31m\\u0085\\u007f\\u202e\\u2067\\u200b\\udb40\\udc41"


@pytest.mark.parametrize(
    "words",
    [
        ("show", "\udcff"),
        ("cancel", "\udcff"),
        ("dlq", "retry", "\udcff"),
        ("dlq", "delete", "\udcff"),
        ("breaker", "reset", "\udcff"),
        ("peek", "-n", "9" * 20),
        ("list", "--limit", "9" * 20),
        ("dlq", "list", "--limit", "9" * 20),
        ("list", "--limit", "9" * 5000),
        ("enqueue", "--type", "x", "--at", "0001-01-01T00:00Z"),
        ("enqueue", "--type", "x", "--at", "0001-01-01"),
        ("enqueue", "--type", "x", "--at", "9999-12-31T23:59:59Z"),
        ("enqueue", "--type", "x", "--at", "9999-12-31"),
        ("list", "--since", "0001-01-01T00:00Z"),
        ("list", "--until", "9999-12-31T23:59:59Z"),
    ],
    ids=lambda words: ascii(" ".join(words))[:60],
)
def test_it_is_one_line_and_exit_code_2(words: tuple[str, ...], shell: CommandLine) -> None:
    assert "; it must be " in shell.fail(*words, code=2)


def test_the_program_itself_says_so_too(tmp_path: Path) -> None:
    ended = subprocess.run(
        [os.fsencode(word) for word in command("show", "\udcff")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.startswith(b"fileq: ID is '\\udcff'; it must be valid UTF-8")


def test_json_output_escapes_what_controls_a_terminal(each_setup: WorkerSetup) -> None:
    name = f"/data/{HOSTILE}.pdf"
    job = file_job(name.encode(), size=1, priority="low", now=datetime.now(UTC), id="a")
    each_setup.broker.enqueue([Entry(job, "low")])
    for words in (("list",), ("show", "a"), ("peek",)):
        ended = run(*words, "--json", cwd=each_setup.directory, settings=each_setup.settings)
        assert ended.returncode == 0, ended.stderr
        assert ESCAPED in ended.stdout
        assert ended.stdout.rstrip("\n").isprintable()
        assert name in texts_of(json.loads(ended.stdout))


def texts_of(document: object) -> str:
    """All texts of a document, as they are."""
    if isinstance(document, dict):
        return "".join(map(texts_of, document.values()))
    return "".join(map(texts_of, document)) if isinstance(document, list) else str(document)


def test_escaped_json_is_the_same_document() -> None:
    for text in (HOSTILE, "plain", "ü€😀", "\n\t\x00"):
        document = json.dumps([text], ensure_ascii=False, indent=2)
        assert json.loads(printable_json(document)) == [text]
        assert printable_json(document).replace("\n", "").isprintable()


def test_a_traceback_keeps_its_lines_and_loses_its_escapes() -> None:
    text = f"Traceback:\n\tfile\nValueError: {HOSTILE}\x1b[2J"
    shown = printable_lines(text)
    assert shown.startswith("Traceback:\n\tfile\nValueError: \\x9b31m")
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    fields = {"level": "error", "event": "e", "timestamp": "t", "exception": text}
    line = ConsoleLine(has_colours=False)(None, "error", fields)
    assert "\x1b" not in line
    assert "\x9b" not in line


def test_try_shows_a_traceback_without_escapes(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"def f(job, context):\n    raise ValueError({HOSTILE!r} + chr(27) + '[2J')\n")
    (tmp_path / "a").touch()
    ended = run("try", "a", cwd=tmp_path, settings={"handlers": '[{match: "**/*", use: "app:f"}]'})
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert ended.stderr.replace("\n", "").isprintable()
