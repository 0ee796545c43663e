"""docs/client.md: its programs run with the real worker and print what their comments say; its tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fileq.client.tasks import task
from fileq.core.job_options import EnqueueOptions
from fileq.handlers.registry import TaskOptions
from tests.support.program import Program, environment

ROOT = Path(__file__).parents[3]
KEY = "an-admin-key-from-outside"
GUIDE = (ROOT / "docs" / "client.md").read_text()
# Each fenced block opens with the name of its file.
BLOCKS = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letter.txt").write_text("Dear reader\n")
    return tmp_path


def in_app(app: Path, *arguments: str, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-B", *arguments],
        cwd=app,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def promised(name: str) -> list[str]:
    """What the comments of a program say that it prints."""
    return re.findall(r"print\(.*\)  # (.*)", BLOCKS[name])


def test_every_block_of_code_names_its_file() -> None:
    assert len(BLOCKS) == GUIDE.count("```") // 2
    assert len(BLOCKS) == 8


def test_the_tests_of_the_guide_pass(app: Path) -> None:
    options = ("-q", "-c", "/dev/null", "-pno:cacheprovider", "-pno:valkey")
    assert "4 passed" in in_app(app, "-m", "pytest", *options, "test_app.py")


def test_the_programs_of_the_guide_print_what_they_say(app: Path) -> None:
    used = in_app(app, "client_use.py").splitlines()
    stay = "pending jobs are cancelled; jobs due later (delay, at) and later arrivals stay"
    assert promised("client_use.py") == ["pending", stay, "cancelled"]
    assert (used[0], used[-1]) == ("pending", "cancelled")
    assert used[1] == "4 [[3]]"
    with Program("worker", cwd=app):
        for name in ("sender.py", "async_use.py"):
            printed = in_app(app, name).splitlines()
            assert promised(name)
            assert printed[-len(promised(name)) :] == promised(name)
        assert in_app(app, "follow.py").splitlines() == [
            "job:created",
            "job:started",
            "job:completed",
        ]
        served = Program("serve", cwd=app, settings={"server.port": 0}, variables={"API_KEY": KEY})
        with served as server:
            url = server.wait_for("server.opened")["url"]
            printed = in_app(app, "http_use.py", QUEUE_URL=url, QUEUE_KEY=KEY).splitlines()
            assert printed == promised("http_use.py")


def test_every_option_is_in_the_guide() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE))
    declared = (EnqueueOptions, TaskOptions, task)
    options = {name for one in declared for name in one.__annotations__} - {"name", "options", "return"}
    assert [name for name in options if f"`{name}`" not in rows] == []
