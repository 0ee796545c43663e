"""Breaks each guard of fileq once, in a copy of the tree, and checks that the named test notices it.

`make mutants` runs it; it is not part of CI. It fails if a mutant survives, if a guard's text no longer occurs exactly
once, or if a named test fails without a mutant. Words select guards by a part of their guarantee, file or test.
`--continue` leaves out the mutants that the last run, which was interrupted, has killed.
`python -m tests.mutants --table` writes the table of docs/guarantees.md.
"""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

from tests.support.guards import GUARDS, Guard

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("fileq", "tests", "docs", "examples", "pyproject.toml", "README.md")
PROCESSES = 2
PAGE, MARK = "docs/guarantees.md", "<!-- guards: written by make docs -->\n\n"
KILLED_BEFORE = ROOT / ".mutants"  # a line for each mutant that the last run has killed
TIMEOUT_S = 300
TESTS_PASSED, TESTS_FAILED = 0, 1  # exit codes of pytest


# Runs pytest in a fork for each line of arguments that it reads, and answers with the exit code. The libraries are
# imported before, which is most of what a short test run costs; fileq and the tests are imported by the fork.
FORK_SERVER = """
import os, shlex, signal, sys
import hypothesis, msgspec, prometheus_client, pytest, redis.asyncio, structlog, wcmatch.glob, yaml
sys.path.insert(0, os.getcwd())
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        signal.alarm(TIMEOUT_S)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(0, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        try:
            code = pytest.main([*options, *shlex.split(line)])
        except BaseException:
            code = 3  # an internal error for pytest too
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Check(NamedTuple):
    """Tests that must pass without a mutant."""

    tests: tuple[str, ...]
    broker: str


class Tree:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written = 0
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        # With CI a test without its server fails; otherwise it would be skipped, and its mutant would survive.
        environment = {**os.environ, "PYTHONPATH": str(folder), "CI": "true"}
        command = [sys.executable, "-c", FORK_SERVER.replace("TIMEOUT_S", str(TIMEOUT_S))]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, broker: str, *tests: str) -> int:
        """The exit code of pytest; negative if it took too long."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(shlex.join([*tests, *(["-k", broker] if broker else [])]) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate()

    def failing(self, check: Check) -> set[tuple[str, str]]:
        """The tests that fail without a mutant, each with its broker."""
        if self.run(check.broker, *check.tests) == TESTS_PASSED:
            return set()
        return {(test, check.broker) for test in check.tests if self.run(check.broker, test) != TESTS_PASSED}

    def verdict(self, guard: Guard) -> str:
        """killed, or what is wrong."""
        if len(found := guard.files()) != 1:
            return f"its text occurs {len(found)} times"
        file = self.folder / found[0]
        original = file.read_text()
        self._write(file, original.replace(guard.text, guard.mutant))
        try:
            code = self.run(guard.kind, guard.test)
        finally:
            self._write(file, original)
        if code == TESTS_PASSED:
            return "SURVIVED"
        return "killed" if code == TESTS_FAILED else f"pytest ended with {code}"

    def _write(self, file: Path, text: str) -> None:
        """Gives each content its own time. Python uses compiled code again if the time, in seconds, is the same."""
        file.write_text(text)
        self._written += 1
        os.utime(file, (self._written, self._written))


def checks(guards: Iterable[Guard]) -> list[Check]:
    """The tests of all guards without a mutant, in a few runs of pytest."""
    by_broker: dict[str, dict[str, None]] = {}
    for guard in guards:
        by_broker.setdefault(guard.kind, {})[guard.test] = None
    return [Check(tuple(tests), broker) for broker, tests in by_broker.items()]


def verdicts(guards: Sequence[Guard]) -> dict[Guard, str]:
    """Tries all mutants, and each test once without a mutant."""
    work: queue.SimpleQueue[Check | Guard] = queue.SimpleQueue()
    for item in (*checks(guards), *guards):
        work.put(item)
    found: dict[Guard, str] = {}
    failing: set[tuple[str, str]] = set()

    def try_all(folder: Path) -> None:
        tree = Tree(folder)
        while True:
            try:
                item = work.get_nowait()
            except queue.Empty:
                tree.close()
                return
            if isinstance(item, Check):
                failing.update(tree.failing(item))
            else:
                found[item] = tree.verdict(item)
                note(item, found[item])

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        threads = [threading.Thread(target=try_all, args=(Path(folder, str(n)),)) for n in range(PROCESSES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {g: "its test fails without it" if (g.test, g.kind) in failing else found[g] for g in guards}


def note(guard: Guard, verdict: str) -> None:
    """Prints the verdict, and keeps it for `--continue`."""
    print(_line(guard, verdict), flush=True)
    if verdict == "killed":
        with KILLED_BEFORE.open("a") as file:
            file.write(_key(guard) + "\n")


def selected(words: Sequence[str], *, continues: bool) -> list[Guard]:
    if not continues:
        KILLED_BEFORE.unlink(missing_ok=True)
    before = set(KILLED_BEFORE.read_text().split()) if KILLED_BEFORE.exists() else set()
    guards = [g for g in GUARDS if _key(g) not in before]
    return [g for g in guards if not words or any(word in f"{g.guarantee} {g.file} {g.test}" for word in words)]


def table(guards: Iterable[Guard]) -> str:
    """The guarantees in Markdown: what, what breaks without it, and which test."""
    lines = ["| guarantee | without it | test |", "|---|---|---|"]
    lines += [f"| {g.guarantee} | {g.without} | `{_shown(g)}` |" for g in guards]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now after its mark."""
    before, mark, _ = page.partition(MARK)
    return f"{before}{mark}{table(GUARDS)}"


def _shown(guard: Guard) -> str:
    file, *names = guard.test.split("::")
    room = Path(file).parent.name
    return "::".join(names[1:]) + f"[{guard.kind}]" if guard.kind else f"{room}/{Path(file).name}::{names[0]}"


def _key(guard: Guard) -> str:
    return sha1(repr(guard).encode()).hexdigest()


def _line(guard: Guard, verdict: str) -> str:
    return f"{verdict:<10} {guard.file.removeprefix('fileq/'):<42} {guard.guarantee}"


def main(arguments: Sequence[str]) -> int:
    if "--table" in arguments:
        page = ROOT / PAGE
        page.write_text(with_table(page.read_text()))
        return 0
    words = [word for word in arguments if word != "--continue"]
    guards = selected(words, continues="--continue" in arguments)
    started_s = time.monotonic()
    found = verdicts(guards)
    failed = [guard for guard in guards if found[guard] != "killed"]
    for guard in failed:
        print(_line(guard, found[guard]))
    print(f"{len(guards) - len(failed)} of {len(guards)} mutants killed in {time.monotonic() - started_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
