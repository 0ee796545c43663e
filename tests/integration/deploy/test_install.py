"""`pip install` of the checkout, as the README says, gives a program that works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.program import REPOSITORY


def test_an_installed_fileq_processes_a_file(tmp_path: Path) -> None:
    assert "bin/pip install ." in (REPOSITORY / "README.md").read_text()
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(REPOSITORY / "fileq", source / "fileq", ignore=shutil.ignore_patterns("__pycache__"))
    # The dependencies are those of this environment; the package comes from the target.
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "hello.txt").write_text("hello")
    ended = subprocess.run(
        [target / "bin" / "fileq", "all", "inbox", "--once", "--set", "producer.settle_unclosed=200ms"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "completed 1" in ended.stdout
    assert (target / "fileq" / "brokers" / "redis" / "lua" / "claim.lua").exists()


@pytest.mark.parametrize(
    ("target", "has_tools"), [("run", False), ("venv", True), ("test", True), ("check", True), ("docs", True)]
)
def test_make_run_installs_the_program_without_the_tools_of_its_tests(
    tmp_path: Path, target: str, has_tools: bool
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    ended = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True)
    installs = [line for line in ended.stdout.splitlines() if "pip install" in line and "-e " in line]
    assert [line.endswith("-e '.[test]'") for line in installs] == [False, True][: 1 + has_tools]
    assert "-e ." in installs[0]
