"""A handler gets the file that was checked, by its descriptor, even if another file has its name by then."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import fileq.testing
from fileq.core.job import State
from fileq.core.outcome import Changed, Done, Failed
from fileq.handlers.outcomes import LONGEST_ERROR
from tests.support import program
from tests.support.command_line import CommandLine
from tests.support.handler_runs import called, failure, file, file_task, python, result, root, routes_of, run
from tests.support.unprivileged import open_path, unprivileged
from tests.support.worker_setup import WorkerSetup

__all__ = ["file", "open_path", "root"]
READ = "import sys; print(open(sys.argv[1]).read(), sys.argv[2], end='')"


def route(code: str, *arguments: str, **options: Any) -> dict[str, Any]:
    found = {**python(code, *arguments, **options), "match": "**/*"}
    del found["type"]
    return found


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def swapped(path: str) -> None:
    """Another file takes the name."""
    Path(f"{path}.new").write_bytes(b"another")
    os.replace(f"{path}.new", path)


def test_job_open_opens_the_checked_file_anew_at_each_call(file: Path, root: Path) -> None:
    def handler(job: Any, context: Any) -> list[Any]:
        swapped(job.path)
        with job.open() as one, job.open("r", encoding="utf-8") as two:
            return [one.read().decode(), two.read(), one.name == two.name == job.path, job.path]

    assert result(run(file_task(file, root), handler)) == ["abc", "abc", True, str(file)]  # type: ignore[comparison-overlap]


def test_a_path_of_a_route_with_safe_open_is_the_checked_file(file: Path, root: Path) -> None:
    fd_route = {"match": "**/*", "use": f"{__name__}:reader", "safe_open": True}
    assert result(run(file_task(file, root), fd_route)) == ["/proc/self/fd/", "abc"]  # type: ignore[comparison-overlap]


def reader(job: Any, context: Any) -> list[str]:
    swapped(job.filepath)
    return [job.path[:14], Path(job.path).read_text()]


def test_a_command_with_safe_open_inherits_the_file_and_knows_its_name(file: Path, root: Path) -> None:
    ended = result(run(file_task(file, root), route(READ, "{filepath}", "{real_filepath}", safe_open=True)))
    assert ended["stdout"] == f"abc {file}"
    shell = {
        "match": "**/*",
        "safe_open": True,
        "command": ["sh", "-c", 'cat "$FILEQ_JOB_FILEPATH"; echo "$FILEQ_JOB_REAL_FILEPATH"'],
    }
    assert result(run(file_task(file, root), shell))["stdout"] == f"abc{file}\n"


def test_a_command_inherits_no_other_descriptor(file: Path, root: Path) -> None:
    there = "{int(n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)}"
    code = f"import os, sys; print(sorted({there}), sys.argv[1])"
    ended = result(run(file_task(file, root), route(code, "{filepath}", safe_open=True)))
    numbers, path = ended["stdout"].rsplit(maxsplit=1)
    assert numbers == f"[0, 1, 2, {path.removeprefix('/proc/self/fd/')}]"


def test_a_command_gets_the_path_of_its_file(file: Path, root: Path) -> None:
    ended = result(run(file_task(file, root), route(READ, "{filepath}", "{filepath}")))
    assert ended["stdout"] == f"abc {file}"


@pytest.mark.parametrize("options", [{"safe_open": False}, {"in_place": True}])
def test_where_the_worker_opens_safely_a_command_can_have_the_path(
    options: dict[str, bool], file: Path, root: Path
) -> None:
    given = route(READ, "{filepath}", "{filepath}", **options)
    assert result(run(file_task(file, root), given, safe_open=True))["stdout"] == f"abc {file}"
    given = route(READ, "{filepath}", "{filepath}")
    assert result(run(file_task(file, root), given, safe_open=True))["stdout"].startswith("abc /proc/self/fd/")


def test_the_file_can_be_written_through_its_descriptor(file: Path, root: Path) -> None:
    code = "import sys; open(sys.argv[1], 'a').write('d')"
    assert isinstance(run(file_task(file, root), route(code, "{filepath}", safe_open=True, in_place=True)), Done)

    def handler(job: Any, context: Any) -> None:
        with job.open("ab") as opened:
            opened.write(b"e")

    assert run(file_task(file, root), handler) == Done()
    assert file.read_bytes() == b"abcde"


def test_the_descriptor_is_closed_however_the_attempt_ends(file: Path, root: Path) -> None:
    kept: list[Any] = []

    def failing(job: Any, context: Any) -> None:
        kept.append(job)
        raise SystemExit(3)

    async def later(job: Any, context: Any) -> int:
        with job.open() as opened:
            return len(opened.read())

    before = descriptors()
    assert isinstance(run(file_task(file, root), failing), Failed)
    assert run(file_task(file, root), later) == Done(b"3")
    assert isinstance(run(file_task(file, root, signature="1-1"), failing), Changed)
    assert isinstance(run(file_task(root, root.parent), failing), Failed)
    assert isinstance(run(file_task(file, root), route("import sys; sys.exit(1)")), Failed)
    assert isinstance(run(file_task(file, root), {"match": "**/*", "command": ["true"], "timeout": "1s"}), Done)
    assert descriptors() == before
    with pytest.raises(ValueError, match="the attempt has ended"):
        kept[0].open()


def test_the_standard_streams_never_become_the_file(file: Path, root: Path) -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        ended = run(file_task(file, root), route(READ, "{filepath}", "x", safe_open=True))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert result(ended)["stdout"] == "abc x"


def test_without_proc_a_name_is_given_and_only_the_checked_file_is_opened(
    file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fileq.handlers.job_file.HAS_PROC", False)

    def handler(job: Any, context: Any) -> bytes:
        with job.open("r+b") as opened:
            assert opened.read() == b"abc"
        job.open("wb").close()
        swapped(job.path)
        with pytest.raises(FileNotFoundError, match="another file has this name"):
            job.open("wb")
        return Path(job.path).read_bytes()

    assert result(run(file_task(file, root), handler)) == "YW5vdGhlcg=="  # type: ignore[comparison-overlap]
    ended = result(run(file_task(file, root), route(READ, "{filepath}", "{real_filepath}", safe_open=True)))
    assert ended["stdout"] == f"another {file}"


def test_a_job_without_a_file_and_a_copy_of_a_job_open_nothing(file: Path) -> None:
    def typed(job: Any, context: Any) -> None:
        job.open()

    def copied(job: Any, context: Any) -> None:
        type(job)(**{name: getattr(job, name) for name in job.__struct_fields__}).open()

    with pytest.raises(ValueError, match="the job has no file"):
        fileq.testing.run(typed, type="t")
    with pytest.raises(ValueError, match="a copy of a job"):
        fileq.testing.run(copied, file)


def test_a_test_of_a_handler_has_the_same_job(file: Path) -> None:
    def handler(job: Any, context: Any) -> tuple[str, bytes]:
        with job.open() as opened:
            return job.path, opened.read()

    before = descriptors()
    assert fileq.testing.run(handler, file) == (str(file), b"abc")
    path, content = fileq.testing.run(handler, file, safe_open=True)
    assert (path[:14], content) == ("/proc/self/fd/", b"abc")
    assert descriptors() == before


def test_a_route_that_does_not_say_it_opens_as_the_worker_does() -> None:
    name = {"use": "fileq.handlers:checksum"}
    tool = {"command": ["true"]}
    keys = [{"match": "*", **keys} for keys in (name, tool, {**tool, "in_place": True}, {**tool, "safe_open": True})]
    assert [route.safe_open for route in routes_of(*keys)] == [False, False, False, True]
    assert [route.safe_open for route in routes_of(*keys, safe_open=True)] == [True, True, False, True]


ADVICE = "a program that needs the name of the file, or opens it in another process, needs safe_open: false"


def test_a_command_that_fails_on_the_descriptor_says_what_helps(file: Path, root: Path) -> None:
    failing = "import sys; sys.exit(f'unknown file type: {sys.argv[1]}')"
    outcome = run(file_task(file, root), route(failing, "{filepath}", safe_open=True))
    assert isinstance(outcome, Failed)
    named = rf"unknown file type: (/proc/self/fd/\d+) \(\1 is {re.escape(str(file))}\); {ADVICE}"
    assert re.search(f"{named}$", outcome.error)
    assert outcome.traceback == ""


@pytest.mark.parametrize("prefix", ["/dev/fd/", "/proc/self/fd/"])
def test_an_error_about_the_descriptor_names_the_file(prefix: str, file: Path, root: Path) -> None:
    def function(job: Any, context: Any) -> None:
        raise ValueError(f"can't parse {prefix}{job.path.removeprefix('/proc/self/fd/')}:3")

    outcome = failure(run(file_task(file, root), function, safe_open=True))
    assert re.search(rf"can't parse ({prefix}\d+):3 .*\(\1 is {re.escape(str(file))}\)$", outcome.error)

    def long(job: Any, context: Any) -> None:
        raise ValueError(f"{job.path} {'x' * 10_000}")

    outcome = failure(run(file_task(file, root), long, safe_open=True))
    assert outcome.error.endswith(f" is {file})")
    assert len(outcome.error) <= LONGEST_ERROR

    def other(job: Any, context: Any) -> None:
        raise ValueError(f"can't parse {job.path}0")

    assert str(file) not in failure(run(file_task(file, root), other, safe_open=True)).error


@pytest.fixture
def forbidden(open_path: Path) -> Path:
    """A file that may not be read."""
    path = open_path / "a.txt"
    path.write_bytes(b"abc")
    path.chmod(0)
    return path


def opens(job: Any, context: Any) -> None:
    job.open()


def opens_by_path(job: Any, context: Any) -> None:
    open(job.path).close()


@pytest.mark.parametrize("is_safe", [False, True])
@pytest.mark.parametrize("handler", ["job.open", "open", "cat", "exit 1", "checksum"])
def test_the_error_for_a_file_that_may_not_be_read_names_the_file_and_the_permission(
    forbidden: Path, handler: str, is_safe: bool
) -> None:
    given: Any = {
        "job.open": {"match": "**/*", "use": f"{__name__}:opens"},
        "open": {"match": "**/*", "use": f"{__name__}:opens_by_path"},
        "cat": {"match": "**/*", "command": ["cat", "{filepath}"]},
        "exit 1": {"match": "**/*", "command": ["sh", "-c", "exit 1"]},
        "checksum": {"match": "**/*", "use": "fileq.handlers:checksum"},
    }[handler]
    with unprivileged():
        outcome = failure(run(file_task(forbidden, forbidden.parent), given, safe_open=is_safe))
    assert str(forbidden) in outcome.error
    assert re.search(r"[Pp]ermission", outcome.error)
    assert "needs safe_open" not in outcome.error + outcome.traceback, "the advice does not help"
    if handler in ("job.open", "checksum") or not is_safe:
        assert "/fd/" not in outcome.error + outcome.traceback


def test_the_error_for_a_directory_that_may_not_be_entered_names_the_whole_path(open_path: Path) -> None:
    path = open_path / "sub" / "a.txt"
    path.parent.mkdir()
    path.write_bytes(b"abc")
    path.parent.chmod(0)
    with unprivileged():
        outcome = failure(run(file_task(path, open_path), called))
    assert outcome.error == f"PermissionError: [Errno 13] Permission denied: {str(path)!r}"


def test_a_command_that_fails_otherwise_has_a_hint_apart_from_its_error(file: Path, root: Path) -> None:
    failing = "import sys; sys.exit('unknown file type')"
    outcome = run(file_task(file, root), route(failing, "{filepath}", safe_open=True))
    assert isinstance(outcome, Failed)
    assert outcome.error.endswith("unknown file type")
    assert re.fullmatch(rf"hint: the file was given as /proc/self/fd/\d+; {ADVICE}", outcome.traceback)
    for other in (route(failing, "{filepath}"), route(failing, "{real_filepath}", safe_open=True)):
        outcome = run(file_task(file, root), other)
        assert isinstance(outcome, Failed)
        assert outcome.traceback == ""


def test_show_and_try_print_the_hint_of_a_command(
    sqlite_setup: WorkerSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = sqlite_setup
    path = setup.inbox / "a.txt"
    path.write_text("x")
    setup.enqueue_file(path, "a")
    handlers = '[{match: "**/*", command: ["false", "{filepath}"], safe_open: true}]'
    setup.worker(count=1, max_retries=0, handlers=handlers)
    setup.wait_for(State.DEAD, ["a"])
    shell = CommandLine(setup, capsys)
    assert "\n     hint: the file was given as /proc/self/fd/" in shell.run("show", "a")
    tried = program.run("try", str(path), cwd=setup.directory, settings={**setup.settings, "handlers": handlers})
    assert ADVICE in tried.stderr
