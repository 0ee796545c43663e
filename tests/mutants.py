"""Breaks each guard of fileq once, in a copy of the tree, and checks that the named tests notice it.

`make mutants` runs it; it is not part of CI. It fails if a mutant survives, if a guard's text no longer occurs exactly
once in its file, or if the named tests fail without a mutant. Arguments select guards by a part of their guarantee or
file. `python -m tests.mutants --table` writes the table of docs/guarantees.md.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.guards import GUARDS, Guard

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("fileq", "tests", "docs", "examples", "pyproject.toml", "README.md")
PROCESSES = os.cpu_count() or 2
PAGE, MARK = "docs/guarantees.md", "<!-- guards: written by make docs -->\n\n"
TIMEOUT_S = 180
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


class Tree:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", FORK_SERVER.replace("TIMEOUT_S", str(TIMEOUT_S))]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, tests: str) -> int:
        """The exit code of pytest; negative if it took too long."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(tests + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate()

    def verdict(self, guard: Guard) -> str:
        """killed, or what is wrong."""
        file = self.folder / guard.file
        original = file.read_text()
        if original.count(guard.text) != 1:
            return f"its text occurs {original.count(guard.text)} times"
        file.write_text(original.replace(guard.text, guard.mutant))
        try:
            code = self.run(guard.tests)
        finally:
            file.write_text(original)
        if code == TESTS_PASSED:
            return "SURVIVED"
        return "killed" if code == TESTS_FAILED or code < 0 else f"pytest ended with {code}"


def verdicts(guards: Sequence[Guard]) -> dict[Guard, str]:
    """Tries all mutants, and each selection of tests once without a mutant."""
    selections = list(dict.fromkeys(guard.tests for guard in guards))
    work: queue.SimpleQueue[Guard | str] = queue.SimpleQueue()
    for item in (*guards, *selections):
        work.put(item)
    found: dict[Guard, str] = {}
    broken: dict[str, int] = {}

    def try_all(folder: Path) -> None:
        tree = Tree(folder)
        while True:
            try:
                item = work.get_nowait()
            except queue.Empty:
                tree.close()
                return
            if isinstance(item, Guard):
                found[item] = tree.verdict(item)
                print(_line(item, found[item]), flush=True)
            elif (code := tree.run(item)) != TESTS_PASSED:
                broken[item] = code

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        threads = [threading.Thread(target=try_all, args=(Path(folder, str(n)),)) for n in range(PROCESSES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {g: f"its tests fail without it ({broken[g.tests]})" if g.tests in broken else found[g] for g in guards}


def table(guards: Iterable[Guard]) -> str:
    """The guarantees in Markdown: what, where, and which tests."""
    lines = ["| guarantee | where | tests |", "|---|---|---|"]
    lines += [f"| {g.guarantee} | `{g.file}` | `{g.tests}` |" for g in guards]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now after its mark."""
    before, mark, _ = page.partition(MARK)
    return f"{before}{mark}{table(GUARDS)}"


def _line(guard: Guard, verdict: str) -> str:
    return f"{verdict:<10} {guard.file.removeprefix('fileq/'):<42} {guard.guarantee}"


def main(arguments: Sequence[str]) -> int:
    if "--table" in arguments:
        page = ROOT / PAGE
        page.write_text(with_table(page.read_text()))
        return 0
    guards = [g for g in GUARDS if not arguments or any(a in g.guarantee or a in g.file for a in arguments)]
    started_s = time.monotonic()
    found = verdicts(guards)
    failed = [guard for guard in guards if found[guard] != "killed"]
    for guard in failed:
        print(_line(guard, found[guard]))
    print(f"{len(guards) - len(failed)} of {len(guards)} mutants killed in {time.monotonic() - started_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
