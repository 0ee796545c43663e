"""Command handlers with real programs: arguments, environment, output and failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fileq.core.errors import Permanent
from fileq.core.job import decode, typed_job
from fileq.core.outcome import Done, Failed
from fileq.handlers.command_handler import NAMES, _argument, _values
from fileq.handlers.job_file import GivenFile
from fileq.handlers.run import run_task
from tests.support.handler_runs import (
    command,
    failure,
    file_task,
    python,
    result,
    routes_of,
    run,
    task_of,
    typed_task,
)

HOSTILE_NAMES = [
    b"plain.txt",
    b"two words.txt",
    b"$(touch pwned) `touch pwned` ; touch pwned & | > pwned",
    b"'single' \"double\" \\back",
    b"-rf",
    b"--help",
    b"*?[a-z]{x,y}~!#%^",
    b"new\nline\r\ttab",
    b"\xff\xfe not utf-8",
    "ünïcödé 😀 \u202e".encode(),
    b"{filepath}",
    b"%s%n $HOME \x1b[31m\x7f\x01",
    b" ",
]
ARGUMENTS = "import json, os, sys; print(json.dumps([os.fsencode(a).hex() for a in sys.argv[1:]]))"
VARIABLES = "import json, os; print(json.dumps({os.fsdecode(k): v.hex() for k, v in os.environb.items()}))"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_file_name_is_one_argument_and_nothing_is_executed(name: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = os.path.join(os.fsencode(root), name)
    with open(path, "wb"):
        pass
    echo = {**python(ARGUMENTS, "{filepath}", "{job_id}"), "match": "**/*", "safe_open": False}
    del echo["type"]
    ended = result(run(file_task(path, root), echo))
    assert [bytes.fromhex(argument) for argument in json.loads(ended["stdout"])] == [path, b"j1"]
    assert os.listdir(os.fsencode(root)) == [name]
    assert not Path("pwned").exists()


def test_every_placeholder_is_a_whole_argument_and_anything_else_is_literal() -> None:
    task = typed_task("t", {"to": "ü"}, attempt=3)
    arguments = [f"{{{name}}}" for name in NAMES] + ["{}", "x{job_id}", "{job_id}x", "{ job_id }", "{print $1}"]
    ended = result(run(task, python(ARGUMENTS, *arguments)))
    job = decode(task.raw)
    assert [bytes.fromhex(argument).decode() for argument in json.loads(ended["stdout"])] == [
        "", "", "j1", "t", '{"to":"ü"}', "", "3", "0", "low", "0", job.creation_time, "", "",
        "{}", "x{job_id}", "{job_id}x", "{ job_id }", "{print $1}",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["id", "priority", "creation_time", "trace_id", "span_id"])
def test_no_value_of_a_job_becomes_an_option_of_the_command(name: str, tmp_path: Path) -> None:
    """A2: `sort {job_id}` wrote to any file for a job with the id --output=FILE."""
    out = tmp_path / "out"
    job = typed_job("idx", -1, priority="low", now=datetime.now(UTC)).but(**{name: f"--output={out}"})
    placeholder = "job_id" if name == "id" else name
    values = _values(job, GivenFile(b"", b""), 1)
    with pytest.raises(Permanent, match=rf"{{{placeholder}}} is '--output=.*would take as an option"):
        _argument(f"{{{placeholder}}}", values)
    assert _argument("{payload}", values) == b"-1"


@pytest.mark.parametrize("id", ["../../etc/cron.d/x", "/etc/x", "a/b", "..", "."])
def test_no_id_of_a_job_is_a_path_for_the_command(id: str) -> None:
    """S9: `cp {filepath} {job_id}` wrote to any file for a pushed job with such an id."""
    job = typed_job("idx", 1, priority="low", now=datetime.now(UTC)).but(id=id)
    with pytest.raises(Permanent, match=r"\{job_id\} is '.*could take as a path; it was not run"):
        _argument("{job_id}", _values(job, GivenFile(b"", b""), 1))


def test_the_environment_describes_the_job(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\n.txt"
    with open(path, "wb") as file:
        file.write(b"abc")
    route = {**python(VARIABLES), "match": "**/*", "safe_open": False}
    del route["type"]
    found = json.loads(result(run(file_task(path, tmp_path, attempt=2), route))["stdout"])
    found = {name: bytes.fromhex(value) for name, value in found.items() if name.startswith("FILEQ_JOB_")}
    assert set(found) == set(NAMES.values())
    assert found["FILEQ_JOB_FILEPATH"] == found["FILEQ_JOB_REAL_FILEPATH"] == path
    assert (found["FILEQ_JOB_ID"], found["FILEQ_JOB_ATTEMPT"], found["FILEQ_JOB_TYPE"]) == (b"j1", b"2", b"")


def test_the_rest_of_the_environment_is_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_VARIABLE", "x y")
    code = "import os; print(os.environ['WORKER_VARIABLE'], end='')"
    assert result(run(typed_task("t"), python(code)))["stdout"] == "x y"


def test_a_command_reads_nothing_from_the_workers_stdin() -> None:
    route = {"type": "t", "command": ["cat"]}
    code = f"from tests.support.handler_runs import *; print(run(typed_task('t'), {route}))"
    ended = subprocess.run(
        [sys.executable, "-c", code], input="secret", capture_output=True, text=True, timeout=30, check=True
    )
    assert "Done(" in ended.stdout
    assert "secret" not in ended.stdout


def test_a_job_that_does_not_fit_into_the_environment_fails_permanently() -> None:
    job = decode(typed_task("t").raw).but(priority="a\0b")
    nul = failure(run(task_of(job), command("true")))
    large = failure(run(typed_task("t", "x" * 3_000_000), command("true")))
    assert nul.is_permanent
    assert "null byte" in nul.error
    assert large.is_permanent
    assert "too large" in large.error


def test_output_and_exit_code_are_the_result() -> None:
    code = "import sys; print('to out'); print('to err', file=sys.stderr)"
    ended = result(run(typed_task("t"), python(code)))
    assert ended == {"exit": 0, "stdout": "to out\n", "stderr": "to err\n"}


def test_more_output_than_a_pipe_holds_does_not_block_and_its_end_is_kept() -> None:
    code = (
        "import sys\n"
        "for i in range(3000):\n"
        "    sys.stdout.write('o' * 1000); sys.stderr.write('e' * 1000)\n"
        "print('last out'); print('last err', file=sys.stderr)\n"
    )
    ended = result(run(typed_task("t"), python(code)))
    for name, letter in (("stdout", "out"), ("stderr", "err")):
        assert len(ended[name]) == 16 * 1024 + 1
        assert ended[name].startswith("…" + letter[0])
        assert ended[name].endswith(f"last {letter}\n")


@pytest.mark.parametrize("byte", [0, 0xFF, 0x22, 0xE4])
def test_output_that_is_not_text_still_fits_into_a_result(byte: int) -> None:
    code = f"import sys; b = bytes([{byte}]) * 50000; sys.stdout.buffer.write(b); sys.stderr.buffer.write(b)"
    ended = run(typed_task("t"), python(code))
    assert isinstance(ended, Done)
    assert ended.warning == ""
    assert len(result(ended)["stdout"]) > 1000


def test_a_character_cut_in_two_is_left_out() -> None:
    code = "print('ä' * 20000, end='x')"
    assert result(run(typed_task("t"), python(code)))["stdout"].strip("…ä") == "x"


def test_a_failure_names_the_exit_code_and_the_text_on_stderr() -> None:
    code = "import sys; print('out'); print('first\\nsecond', file=sys.stderr); sys.exit(3)"
    ended = failure(run(typed_task("t"), python(code)))
    name = os.path.basename(sys.executable)
    assert ended == Failed(f"{name} exited with 3: first | second", "exit 3")


def test_a_failure_without_text_on_stderr_shows_stdout() -> None:
    assert failure(run(typed_task("t"), python("print('no paper'); exit(1)"))).error.endswith("exited with 1: no paper")
    assert failure(run(typed_task("t"), command("false"))).error == "false exited with 1"


def test_of_a_long_error_text_the_end_is_kept() -> None:
    code = "import sys; print('x' * 9000 + ' the end', file=sys.stderr); sys.exit(1)"
    ended = failure(run(typed_task("t"), python(code)))
    assert len(ended.error) < 4000
    assert ended.error.endswith("x the end")
    assert "exited with 1: …x" in ended.error


def test_a_command_killed_by_a_signal_names_the_signal() -> None:
    ended = failure(run(typed_task("t"), python("import os; os.kill(os.getpid(), 11)")))
    assert ended.kind == "SIGSEGV"
    assert ended.error.endswith("was killed by SIGSEGV")
    unnamed = failure(run(typed_task("t"), python("import os; os.kill(os.getpid(), 40)")))
    assert unnamed.kind == "signal 40"


@pytest.mark.parametrize(("give_up_on", "is_permanent"), [([3], True), ([4], False)])
def test_an_exit_code_in_give_up_on_is_a_permanent_failure(give_up_on: list[int], is_permanent: bool) -> None:
    ended = failure(run(typed_task("t"), python("exit(3)", give_up_on=give_up_on)))
    assert (ended.is_permanent, ended.is_sample) == (is_permanent, not is_permanent)


def test_a_program_that_was_deleted_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    routes = routes_of(command(str(program)))
    program.unlink()
    ended = failure(run_task(routes, typed_task("t"), threading.Event()))
    assert ended.kind == "FileNotFoundError"
    assert str(program) in ended.error


def test_a_job_can_carry_a_shell_line_with_allow_commands(tmp_path: Path) -> None:
    task = typed_task("command", {"command": "echo one | tr a-z A-Z; echo $FILEQ_JOB_ID"})
    assert result(run(task, allow_commands=True))["stdout"] == "ONE\nj1\n"


def test_a_job_can_carry_a_list_which_no_shell_interprets() -> None:
    task = typed_task("command", {"command": ["echo", "$HOME", "{filepath}"]})
    assert result(run(task, allow_commands=True))["stdout"] == "$HOME {filepath}\n"


def test_a_command_from_a_job_fails_with_its_exit_code() -> None:
    ended = failure(run(typed_task("command", {"command": "echo no >&2; exit 4"}), allow_commands=True))
    assert ended == Failed("the command exited with 4: no", "exit 4")


@pytest.mark.parametrize("payload", [None, {}, "ls", *({"command": it} for it in ("", " ", [], [1], [""], "a\0"))])
def test_a_command_job_without_a_command_fails_permanently(payload: Any) -> None:
    ended = failure(run(typed_task("command", payload), allow_commands=True))
    assert ended.is_permanent, ended
