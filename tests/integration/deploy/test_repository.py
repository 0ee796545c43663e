"""Facts about the whole checkout: no package host is named, every version is pinned, CI skips nothing."""

import functools
import glob
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
HOST = re.compile(r"https?://(?:[^/@\s]*@)?((?:[a-z0-9-]+\.)+[a-z]{2,})")


@functools.cache
def package_hosts():
    """The hosts that the package clients of this machine use: read from them, as no file may name one."""
    commands = [
        [sys.executable, "-c", "from pip._internal.models.index import PyPI as p; print(p.url, p.file_storage_domain)"],
        [sys.executable, "-m", "pip", "config", "list"],
    ]
    if shutil.which("npm"):
        commands.append(["npm", "config", "get", "registry"])
    outputs = [subprocess.run(c, capture_output=True, text=True, check=True, timeout=60).stdout for c in commands]
    outputs[0] = outputs[0].replace(" ", " https://")
    outputs += [Path(name).read_text() for name in glob.glob("/etc/apt/sources.list.d/*.sources")]
    return sorted(set(HOST.findall("\n".join(outputs))))


def lines_naming(host, checkout):
    """The lines that `git grep` finds in all files that are not ignored."""
    git = ["git", "-c", "safe.directory=*", "grep", "--untracked", "-nIF", "-e", host, "--", "."]
    found = subprocess.run(git, cwd=checkout, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    return found.stdout.splitlines()


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def run_pytest(test, *arguments, **environment):
    """Runs pytest with our conftest on one file outside the checkout."""
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-pno:cacheprovider", "-ptests.conftest", "-ra"]
    return subprocess.run(
        [*command, *arguments, str(test)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_file_names_a_package_host():
    hosts = package_hosts()
    assert len(hosts) >= 2, hosts
    assert [line for host in hosts for line in lines_naming(host, ROOT)] == []


def test_a_named_package_host_would_be_found(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    host = package_hosts()[0]
    (tmp_path / "lock").write_text(f"a line\nurl = https://{host}/simple\n")
    assert lines_naming(host, tmp_path) == [f"lock:2:url = https://{host}/simple"]


def test_constraints_are_names_with_exact_versions_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!+]*", line)] == []
    assert lines == sorted(lines, key=str.lower)
    assert len(pins()) == len(lines)


def test_every_declared_dependency_is_imported_by_the_package():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    sources = "\n".join(path.read_text() for path in (ROOT / "fileq").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", sources, re.MULTILINE))
    modules = {"pyyaml": "yaml", "opentelemetry-sdk": "opentelemetry", "opentelemetry-exporter-otlp": "opentelemetry"}
    modules["wsproto"] = "uvicorn"  # which imports it by its name, for WebSockets
    for requirement in declared:
        name = re.split(r"[>=\[<]", requirement)[0]
        assert modules.get(name, name.replace("-", "_")) in imported, f"{name} is declared and never imported"


def test_everything_installed_for_fileq_is_pinned_to_what_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["test"]
    todo = [Requirement(line) for line in declared + project["build-system"]["requires"]]
    seen: set[tuple[str, str]] = set()
    wrong = []
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ["", *requirement.extras]:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            installed = importlib.metadata.distribution(name)
            if pins().get(name) != installed.version:
                wrong.append(f"{name} {installed.version} is installed, constraints.txt says {pins().get(name)}")
            needs = map(Requirement, installed.requires or [])
            todo += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    assert not wrong
    assert len(seen) > 40


def test_workflows_may_only_read_and_run_actions_by_their_commit():
    """A tag of an action can be moved to other code, which would run with the token of the repository."""
    files = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
    assert files
    for file in files:
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}, file.name
        for job in workflow["jobs"].values():
            assert "permissions" not in job, file.name
            for step in job["steps"]:
                action = step.get("uses", "")
                assert re.fullmatch(r"([\w-]+/[\w-]+@[0-9a-f]{40})?", action), action
                if action.startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False


SKIPPED = {
    "test": "import pytest\ndef test_passes(): pass\ndef test_skips(): pytest.skip('for a reason')\n",
    "file": "import pytest\npytest.skip('for a reason', allow_module_level=True)\n",
}


@pytest.mark.parametrize(
    ("ci", "skipped", "processes", "code"),
    [("", "test", "-n1", 0), ("", "file", "-n0", 0), ("true", "test", "-n0", 1), ("true", "file", "-n1", 1)],
)
def test_a_skipped_test_or_file_fails_the_run_in_ci_only(tmp_path, ci, skipped, processes, code):
    (tmp_path / "test_skipped.py").write_text(SKIPPED[skipped])
    (tmp_path / "test_passes.py").write_text("def test_passes(): pass\n")
    run = run_pytest(tmp_path, processes, CI=ci)
    assert run.returncode == code, run.stdout + run.stderr
    assert f"{2 if skipped == 'test' else 1} passed, 1 skipped" in run.stdout


IN_EVERY_PROCESS = """
import sys
import pytest
@pytest.mark.parametrize("number", range(2))
def test_warnings_are_errors(number):
    assert sys.flags.dev_mode
    assert "error" in sys.warnoptions
"""


def test_make_test_passes_its_arguments_on_and_every_process_treats_warnings_as_errors(tmp_path):
    (tmp_path / "test_passes.py").write_text(IN_EVERY_PROCESS)
    (tmp_path / "test_passes_too.py").write_text(IN_EVERY_PROCESS)
    arguments = f"-c {os.devnull} -p no:cacheprovider -p tests.conftest -v -k warnings {tmp_path}"
    make = [
        "make",
        "-o",
        ".venv/.installed-tools",
        "test",
        f"BIN={Path(sys.executable).parent}",
        f"PYTEST_ARGS={arguments}",
        "TEST_PROCESSES=2",
    ]
    environ = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    run = subprocess.run(make, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout
    assert len(set(re.findall(r"\[gw\d+\]", run.stdout))) == 2, run.stdout


@pytest.mark.parametrize(("ci", "word"), [("", "3 skipped"), ("true", "3 errors")])
def test_without_redis_server_its_tests_fail_in_ci_and_are_skipped_elsewhere(tmp_path, ci, word):
    for name in ("git", "openssl"):
        (tmp_path / name).symlink_to(shutil.which(name))
    test = tmp_path / "test_needs.py"
    test.write_text("def test_a(tls_server): pass\ndef test_b(sentinel): pass\ndef test_c(redis_server): pass\n")
    run = run_pytest(test, CI=ci, PATH=str(tmp_path))
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    assert word in run.stdout
    assert "redis-server is not on PATH: apt-get install redis-server" in run.stdout
