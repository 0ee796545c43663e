"""Tests of the deployment need external programs; without them they are skipped locally and fail in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.program import REPOSITORY

NEEDY = {
    "prometheus": "tests/integration/deploy/test_alerts.py::test_the_rules_are_valid",
    "kubectl": "tests/integration/deploy/test_kubernetes.py::test_the_broker_of_the_base_is_redis",
}


@pytest.mark.parametrize(("ci", "word"), [("", "2 skipped"), ("true", "2 failed")])
def test_without_them_tests_are_skipped_locally_and_fail_in_ci(ci: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "git").symlink_to(str(shutil.which("git")))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-pno:cacheprovider", "-q", *NEEDY.values()],
        cwd=REPOSITORY,
        env=os.environ | {"CI": ci, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert word in ran.stdout, ran.stdout + ran.stderr
    for program in NEEDY:
        assert f"{program} is not on PATH: apt-get install {program}" in ran.stdout
