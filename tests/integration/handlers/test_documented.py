"""docs/handlers.md: its snippets are run, and it documents every option, placeholder and environment variable."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fileq.config.schema import RouteSettings
from fileq.handlers.command_handler import NAMES

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "handlers.md").read_text()
# Each fenced block opens with the name of its file.
BLOCKS = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL)
MODULES = {name: text for name, text in BLOCKS if name.endswith(".py")}
CONFIGS = [text for name, text in BLOCKS if name == "config.yaml"]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "data").mkdir()
    return tmp_path


def in_app(app: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", *arguments], cwd=app, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_block_of_code_names_its_file() -> None:
    assert len(BLOCKS) == GUIDE.count("```") // 2
    assert {*MODULES} == {"app.py", "around.py", "deliver.py", "fetch.py", "split.py", "test_app.py"}
    assert len(CONFIGS) == 5


def test_the_tests_of_the_guide_pass(app: Path) -> None:
    ended = in_app(app, "-m", "pytest", "-q", "-c", "/dev/null", "-pno:cacheprovider", "-pno:valkey", "test_app.py")
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("number", "file", "content", "shown"),
    [
        (0, "letter.txt", "Dear\nreader\n", '{\n  "lines": 2,\n  "bytes": 12\n}\n'),
        (1, "letter.txt", "", '"bytes": 0'),
        (2, "a.url", "", '"fetched"\n'),
        (3, "a.csv", "b\na\n", '"exit": 0'),
        (4, "a.list", "a\nb\n", "2\n"),
        (3, "it's.log", "ERROR\nfine\n", r'"stdout": "1\n"'),
    ],
)
def test_each_configuration_of_the_guide_runs_its_handler(
    number: int, file: str, content: str, shown: str, app: Path
) -> None:
    (app / "config.yaml").write_text(CONFIGS[number])
    (app / "data" / file).write_text(content)
    ended = in_app(app, "-m", "fileq", "try", f"data/{file}")
    assert ended.returncode == 0, ended.stderr
    assert shown in ended.stdout


def test_what_fileq_try_shows_is_what_the_guide_shows(app: Path) -> None:
    (app / "config.yaml").write_text(CONFIGS[0])
    (app / "data" / "letter.txt").write_text("x" * 38 + "\n" + "y" * 39 + "\n" + "z" * 40 + "\n")
    ended = in_app(app, "-m", "fileq", "try", "data/letter.txt")
    session = GUIDE.split("$ fileq try data/letter.txt\n")[1].split("\n\n")[0]
    lines = [line.removeprefix("    ") for line in session.splitlines()]
    assert lines[0] == ended.stderr.splitlines()[0]
    assert lines[1:-1] == ended.stdout.splitlines()
    assert lines[-1].startswith("done in ")


def test_every_option_placeholder_and_variable_is_in_the_guide() -> None:
    options = [name for name in RouteSettings.__struct_fields__ if name not in ("match", "type", "use", "command")]
    assert [name for name in options if f"| `{name}` |" not in GUIDE] == []
    assert [name for name, variable in NAMES.items() if f"| `{{{name}}}` | `{variable}`" not in GUIDE] == []
