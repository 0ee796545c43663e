"""The examples do what their README says, on real files, with real programs, against a real server."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fileq.config import load
from fileq.core.job import encode, file_job
from fileq.core.outcome import Done, Failed
from fileq.files.globs import Globs
from fileq.handlers import registry
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.handlers.task import Ran, Task

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[[str], Ran]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Run]]:
    """Goes into a copy of an example, and returns what runs a file of its inbox as a worker there would."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(registry, "REGISTRY", registry.Registry())

    def enter(name: str) -> Run:
        shutil.copytree(EXAMPLES / name, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        os.mkdir("inbox")
        loaded = load(environ={})
        routes = Routes.load(loaded.config, app_dir="")
        assert routes.warnings == ()
        paths = loaded.config.paths

        def run(file: str) -> Ran:
            path = os.path.abspath(os.fsencode(f"inbox/{file}"))
            size = os.path.getsize(path)
            job = file_job(path, size=size, priority="low", now=datetime(2026, 11, 16, tzinfo=UTC), id="j1")
            number = routes.find(job, paths.relative(path))
            assert number is not None
            task = Task("k", encode(job), number, path, paths.roots, attempt=1, timeout_s=routes[number].timeout)
            return run_task(task, routes, threading.Event())

        return run

    yield enter
    for name in set(sys.modules) - before:
        del sys.modules[name]


def result(ended: Ran) -> Any:
    assert isinstance(ended, Done), ended
    return json.loads(ended.result)


def failure(ended: Ran) -> Failed:
    assert isinstance(ended, Failed), ended
    return ended


def test_every_example_has_its_line_in_the_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert len(names) == 4
    assert [name for name in names if f"| [{name}]({name}) |" not in readme] == []
    assert [name for name in names if not (EXAMPLES / name / "config.yaml").is_file()] == []


# images


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 640, 480, 8, 2, 0, 0, 0) + b"rest"
GIF = b"GIF89a" + struct.pack("<HH", 12, 7) + b"rest" * 5
JPEG = (
    b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9)
    + b"\xff\xc4" + struct.pack(">H", 5) + bytes(3)
    + b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, 333, 1024, 1) + bytes(3)
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "form", "size"),
    [("a.png", PNG, "png", (640, 480)), ("b.gif", GIF, "gif", (12, 7)), ("c \n.jpg", JPEG, "jpeg", (1024, 333))],
)
def test_the_size_of_an_image_is_read_and_written_beside_it(
    name: str, content: bytes, form: str, size: tuple[int, int], example: Callable[[str], Run]
) -> None:
    run = example("images")
    Path("inbox", name).write_bytes(content)
    facts = {"format": form, "width": size[0], "height": size[1], "bytes": len(content)}
    assert result(run(name)) == facts
    assert result(run(name)) == facts, "a repetition does no harm"
    assert json.loads(Path("inbox", f"{name}.json").read_text()) == facts
    assert sorted(os.listdir("inbox")) == [name, f"{name}.json"]


@pytest.mark.parametrize("content", [b"", b"text", PNG[:20], JPEG[:30], b"\xff\xd8" + b"junk" * 9, b"GIF89a\0"])
def test_what_is_no_image_is_dead_at_once_and_leaves_nothing(content: bytes, example: Callable[[str], Run]) -> None:
    run = example("images")
    Path("inbox/a.png").write_bytes(content)
    assert failure(run("a.png")).is_permanent
    assert os.listdir("inbox") == ["a.png"]


def test_what_is_written_beside_images_is_not_taken_for_an_image(example: Callable[[str], Run]) -> None:
    example("images")
    included = Globs(load(environ={}).config.producer.include_globs)
    names = ("a.png", "b.JPG", "a.png.json", "a.png.json.j1.tmp")
    assert [name for name in names if included.match("", name)] == ["a.png", "b.JPG"]


# documents


def docx(path: str, *paragraphs: str) -> None:
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r><w:r><w:t>!</w:t></w:r></w:p>" for text in paragraphs)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>')


def test_the_text_of_a_document_is_extracted_by_a_command(example: Callable[[str], Run]) -> None:
    run = example("documents")
    name = "$(touch pwned) letter;.docx"
    docx(f"inbox/{name}", "Dear reader", "ünï &amp; cödé")
    assert result(run(name)) == {"exit": 0, "stdout": "5 words\n", "stderr": ""}
    assert Path("text", f"{name}.txt").read_text(encoding="utf-8") == "Dear reader!\nünï & cödé!\n"
    assert "pwned" not in os.listdir() + os.listdir("inbox")


def test_a_damaged_document_is_dead_at_once(example: Callable[[str], Run]) -> None:
    run = example("documents")
    Path("inbox/a.docx").write_bytes(b"PK\3\4 cut off")
    ended = failure(run("a.docx"))
    assert (ended.kind, ended.is_permanent) == ("exit 65", True)
    assert "not a document: File is not a zip file" in ended.error


def test_the_text_of_a_page_is_what_sed_leaves(example: Callable[[str], Run]) -> None:
    run = example("documents")
    Path("inbox/-n.html").write_text("<html>\n<h1>Title</h1>\n\n<p>One <b>two</b>\n</html>\n")
    assert result(run("-n.html"))["stdout"] == "Title\nOne two\n"


# webhook


class Receiver(ThreadingHTTPServer):
    """A server that answers as it is told and keeps what it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.status = 200
        self.answer_headers: dict[str, str] = {}
        self.received: list[tuple[str, dict[str, Any], str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Answering(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.command, body, self.headers["Idempotency-Key"]))
        self.send_response(self.server.status)
        for name, value in self.server.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("WEBHOOK_URL", server.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def announce(example: Callable[[str], Run], receiver: Receiver) -> Callable[[], Ran]:
    run = example("webhook")
    Path("inbox/a.txt").write_bytes(b"abc")
    return lambda: run("a.txt")


def test_a_file_is_announced_with_the_id_of_its_job(announce: Callable[[], Ran], receiver: Receiver) -> None:
    assert result(announce()) == {"status": 200}
    assert receiver.received == [
        ("POST", {"id": "j1", "file": "a.txt", "bytes": 3, "found": "2026-11-16T00:00:00.000Z"}, "j1")
    ]


@pytest.mark.parametrize("status", [400, 404, 410, 302])
def test_a_refusal_is_dead_at_once(status: int, announce: Callable[[], Ran], receiver: Receiver) -> None:
    receiver.status = status
    receiver.answer_headers = {"Location": receiver.url}
    ended = failure(announce())
    assert ended.is_permanent
    assert str(status) in ended.error
    assert len(receiver.received) == 1, "a redirect is not followed"


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_patience_gets_it(status: int, announce: Callable[[], Ran], receiver: Receiver) -> None:
    receiver.status = status
    receiver.answer_headers = {"Retry-After": "120"}
    ended = failure(announce())
    assert (ended.kind, ended.after_s, ended.is_permanent) == ("Retry", 120.0, False)
    receiver.answer_headers = {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}
    after_s = failure(announce()).after_s
    assert after_s is not None
    assert 3500 < after_s <= 3600
    for unclear in ({}, {"Retry-After": "soon"}):
        receiver.answer_headers = unclear
        assert failure(announce()).after_s is None


def test_a_server_that_fails_or_is_away_is_tried_again_by_the_usual_delays(
    announce: Callable[[], Ran], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status = 500
    ended = failure(announce())
    assert (ended.kind, ended.is_permanent, ended.after_s) == ("RuntimeError", False, None)
    monkeypatch.setenv("WEBHOOK_URL", "http://127.0.0.1:1/")
    away = failure(announce())
    assert (away.kind, away.is_permanent) == ("URLError", False)
