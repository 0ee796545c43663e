"""The examples run as their README says, with the real program, and the tests beside them pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fileq.config import load
from fileq.files.globs import Globs
from tests.support.program import REPOSITORY, environment
from tests.support.servers.server import free_port

EXAMPLES = REPOSITORY / "examples"
NAMES = ("container", "documents", "images", "nightly-report", "pipeline", "rest-api", "web-application", "webhook")
# What the commands of the README must print to stdout.
PRINTED = {
    "images": ['"width": 640', "completed 1", '{"format": "png", "width": 640, "height": 480, "bytes": 24}'],
    "documents": ['"stdout": "A title\\n"', "completed 1"],
    "pipeline": ["completed 3", '{"customer": "ann", "total": 8.0}', "created by job"],
    "webhook": ["completed 1"],
    "nightly-report": [
        "; the next run of nightly-report is unchanged",
        '{"files": 1, "bytes": 6, "missed": 0}',
        " 02:30",
    ],
    "container": ['"documents": 2', "completed 1"],
    "rest-api": ['200 {"message":"Job cancelled",', '200 {"message":"Purged 1 dead job"}', "401 "],
    "web-application": ["count-words  tasks:count_words", '"result": {"to": 2, "be": 2, "or": 1}'],
}
HOOK = "https://example.com/hook"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy in which the programs of this environment are first on PATH."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "inbox", "*.db*"))
    (tmp_path / "bin").mkdir()
    for name, module in (("fileq", "-m fileq"), ("python", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        program.chmod(0o755)
    return tmp_path / "examples"


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that accepts every announcement: its URL and what it received."""
    received: list[dict[str, Any]] = []

    class Accepting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Accepting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", received
        server.shutdown()
        thread.join()


def test_every_example_has_its_line_in_the_readme_and_tests_beside_it() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(names) == list(NAMES)
    for name in names:
        assert f"| [{name}]({name}) |" in readme
        assert (EXAMPLES / name / "config.yaml").is_file()
        assert list((EXAMPLES / name).glob("test_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_its_own_tests_pass(name: str, examples: Path) -> None:
    command = [sys.executable, "-B", "-W", "error", "-m", "pytest", "-q", "-c", os.devnull, "-pno:cacheprovider"]
    ended = subprocess.run(
        [*command, "--rootdir", examples / name, examples / name],
        cwd=examples / name,
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"\d+ passed", ended.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_the_readme_says(name: str, examples: Path, hook: tuple[str, list[dict[str, Any]]]) -> None:
    url, received = hook
    blocks = re.findall(r"```sh\n(.*?)```", (examples / "README.md").read_text(), re.DOTALL)
    [block] = [block for block in blocks if block.startswith(f"cd {name} ")]
    path = f"{examples.parent / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-e", "-c", block.replace(HOOK, url).replace("8000", str(free_port()))],
        cwd=examples,
        env=environment(PATH=path, no_proxy="127.0.0.1", FILEQ_PRODUCER_SETTLE_UNCLOSED="200ms"),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for text in PRINTED[name]:
        assert text in ended.stdout
    assert [body["file"] for body in received] == (["hello.txt"] if name == "webhook" else [])


def test_sidecar_files_of_images_are_not_processed() -> None:
    included = Globs(load(str(EXAMPLES / "images" / "config.yaml"), environ={}).config.producer.include_globs)
    names = ("a.png", "b.JPG", "a.png.json", "a.png.json.j1.tmp")
    assert [name for name in names if included.match("", name)] == ["a.png", "b.JPG"]


def test_the_text_of_a_document_is_written_under_its_name(examples: Path) -> None:
    inbox = examples / "documents" / "inbox"
    inbox.mkdir()
    with zipfile.ZipFile(inbox / "a b.docx", "w") as archive:
        archive.writestr("word/document.xml", "<document/>")
    ended = subprocess.run(
        [examples.parent / "bin" / "fileq", "try", "inbox/a b.docx"],
        cwd=examples / "documents",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in (examples / "documents" / "text").iterdir()] == ["a b.docx.txt"]


def test_a_damaged_document_is_not_retried(examples: Path) -> None:
    """give_up_on of the route is the exit code of the program."""
    inbox = examples / "documents" / "inbox"
    inbox.mkdir()
    (inbox / "$(touch pwned) a;.docx").write_bytes(b"PK\3\4 cut off")
    ended = subprocess.run(
        [examples.parent / "bin" / "fileq", "try", "inbox/$(touch pwned) a;.docx"],
        cwd=examples / "documents",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "a worker would not retry it" in ended.stderr
    assert "not a document: File is not a zip file" in ended.stderr
    assert not list(examples.rglob("pwned"))
