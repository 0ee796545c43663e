"""Command handlers on real programs: names stay names, output never blocks, nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fileq.core.job import decode
from fileq.core.outcome import Done, Failed
from fileq.handlers.command_handler import NAMES
from fileq.handlers.run import run_task
from fileq.handlers.task import Ran
from tests.support.handler_runs import file_task, routes_of, run, task_of, typed_task
from tests.support.waiting import wait_until

NASTY = [
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


def command(*arguments: str, **options: Any) -> dict[str, Any]:
    return {"type": "t", "command": list(arguments), **options}


def python(code: str, *arguments: str, **options: Any) -> dict[str, Any]:
    return command(sys.executable, "-c", code, *arguments, **options)


def result(ended: Ran) -> dict[str, Any]:
    assert isinstance(ended, Done), ended
    decoded: dict[str, Any] = json.loads(ended.result)
    return decoded


def failure(ended: Ran) -> Failed:
    assert isinstance(ended, Failed), ended
    return ended


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# arguments and environment


@pytest.mark.parametrize("name", NASTY)
def test_a_file_name_is_one_argument_and_nothing_is_executed(name: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = os.path.join(os.fsencode(root), name)
    with open(path, "wb"):
        pass
    echo = {**python(ARGUMENTS, "{filepath}", "{job_id}"), "match": "**/*"}
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
        "", "j1", "t", '{"to":"ü"}', "3", "0", "low", "0", job.creation_time, "", "",
        "{}", "x{job_id}", "{job_id}x", "{ job_id }", "{print $1}",
    ]  # fmt: skip


def test_the_environment_tells_of_the_job(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\n.txt"
    with open(path, "wb") as file:
        file.write(b"abc")
    route = {**python(VARIABLES), "match": "**/*"}
    del route["type"]
    told = json.loads(result(run(file_task(path, tmp_path, attempt=2), route))["stdout"])
    told = {name: bytes.fromhex(value) for name, value in told.items() if name.startswith("FILEQ_JOB_")}
    assert set(told) == set(NAMES.values())
    assert told["FILEQ_JOB_FILEPATH"] == path
    assert (told["FILEQ_JOB_ID"], told["FILEQ_JOB_ATTEMPT"], told["FILEQ_JOB_TYPE"]) == (b"j1", b"2", b"")


def test_the_rest_of_the_environment_is_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOUT_THE_WORKER", "x y")
    code = "import os; print(os.environ['ABOUT_THE_WORKER'], end='')"
    assert result(run(typed_task("t"), python(code)))["stdout"] == "x y"


def test_a_command_reads_nothing_from_the_workers_stdin() -> None:
    route = {"type": "t", "command": ["cat"]}
    code = f"from tests.support.handler_runs import *; print(run(typed_task('t'), {route}))"
    ended = subprocess.run(
        [sys.executable, "-c", code], input="secret", capture_output=True, text=True, timeout=30, check=True
    )
    assert "Done(" in ended.stdout
    assert "secret" not in ended.stdout


def test_a_job_that_no_environment_can_carry_fails_for_good() -> None:
    job = decode(typed_task("t").raw).but(priority="a\0b")
    nul = failure(run(task_of(job), command("true")))
    large = failure(run(typed_task("t", "x" * 3_000_000), command("true")))
    assert nul.is_permanent
    assert "null byte" in nul.error
    assert large.is_permanent
    assert "too large" in large.error


# output


def test_output_and_exit_code_are_the_result() -> None:
    code = "import sys; print('to out'); print('to err', file=sys.stderr)"
    ended = result(run(typed_task("t"), python(code)))
    assert ended == {"exit": 0, "stdout": "to out\n", "stderr": "to err\n"}


def test_more_output_than_any_pipe_holds_blocks_nobody_and_its_end_is_kept() -> None:
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
def test_output_that_is_no_text_still_fits_into_a_result(byte: int) -> None:
    code = f"import sys; b = bytes([{byte}]) * 50000; sys.stdout.buffer.write(b); sys.stderr.buffer.write(b)"
    ended = run(typed_task("t"), python(code))
    assert isinstance(ended, Done)
    assert ended.warning == ""
    assert len(result(ended)["stdout"]) > 1000


def test_a_character_cut_in_two_is_left_out() -> None:
    code = "print('ä' * 20000, end='x')"
    assert result(run(typed_task("t"), python(code)))["stdout"].strip("…ä") == "x"


# failures


def test_a_failure_tells_the_exit_code_and_what_was_said() -> None:
    code = "import sys; print('out'); print('first\\nsecond', file=sys.stderr); sys.exit(3)"
    ended = failure(run(typed_task("t"), python(code)))
    name = os.path.basename(sys.executable)
    assert ended == Failed(f"{name} exited with 3: first | second", "exit 3")


def test_a_failure_that_says_nothing_on_stderr_shows_its_output() -> None:
    assert failure(run(typed_task("t"), python("print('no paper'); exit(1)"))).error.endswith("exited with 1: no paper")
    assert failure(run(typed_task("t"), command("false"))).error == "false exited with 1"


def test_a_long_complaint_is_kept_from_its_end() -> None:
    code = "import sys; print('x' * 9000 + ' the end', file=sys.stderr); sys.exit(1)"
    ended = failure(run(typed_task("t"), python(code)))
    assert len(ended.error) < 4000
    assert ended.error.endswith("x the end")
    assert "exited with 1: …x" in ended.error


def test_a_signal_is_told_by_its_name() -> None:
    ended = failure(run(typed_task("t"), python("import os; os.kill(os.getpid(), 11)")))
    assert ended.kind == "SIGSEGV"
    assert ended.error.endswith("was killed by SIGSEGV")
    odd = failure(run(typed_task("t"), python("import os; os.kill(os.getpid(), 40)")))
    assert odd.kind == "signal 40"


@pytest.mark.parametrize(("give_up_on", "is_permanent"), [([3], True), ([4], False)])
def test_give_up_on_an_exit_code_is_for_good(give_up_on: list[int], is_permanent: bool) -> None:
    ended = failure(run(typed_task("t"), python("exit(3)", give_up_on=give_up_on)))
    assert (ended.is_permanent, ended.is_sample) == (is_permanent, not is_permanent)


def test_a_program_that_went_away_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    routes = routes_of(command(str(program)))
    program.unlink()
    ended = failure(run_task(typed_task("t"), routes, threading.Event()))
    assert ended.kind == "FileNotFoundError"
    assert str(program) in ended.error


# its end, and that of everything it started


def test_a_timeout_kills_the_whole_group_at_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(pids)!r}, 'w') as file: file.write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    started_s = time.monotonic()
    ended = failure(run(typed_task("t", timeout_s=1.0), python(code)))
    assert ended == Failed("timed out after 1s", "Timeout")
    assert time.monotonic() - started_s < 3
    wait_until(lambda: not [pid for pid in map(int, pids.read_text().split()) if is_running(pid)])


def in_thread(route: dict[str, Any], cancelled: threading.Event) -> tuple[threading.Thread, list[Ran]]:
    routes, outcomes = routes_of(route), []
    thread = threading.Thread(target=lambda: outcomes.append(run_task(typed_task("t"), routes, cancelled)))
    thread.start()
    return thread, outcomes


def test_a_cancelled_command_is_asked_to_stop_and_may_clean_up(tmp_path: Path) -> None:
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def stop(*_): pathlib.Path({str(cleaned)!r}).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    cancelled = threading.Event()
    thread, outcomes = in_thread(python(code), cancelled)
    wait_until(ready.exists)
    cancelled.set()
    thread.join(10)
    assert failure(outcomes[0]).kind == "InterruptedError"
    assert cleaned.exists()


def test_a_cancelled_command_that_will_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.handlers.subprocesses.TERM_GRACE_S", 0.2)
    ready = tmp_path / "ready"
    code = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).write_text(str(os.getpid()))\n"
        "while True: time.sleep(600)\n"
    )
    cancelled = threading.Event()
    thread, outcomes = in_thread(python(code), cancelled)
    wait_until(lambda: ready.exists() and ready.read_text())
    cancelled.set()
    thread.join(10)
    assert failure(outcomes[0]).kind == "InterruptedError"
    assert not is_running(int(ready.read_text()))


def test_a_process_that_ends_takes_the_commands_of_its_threads_along(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import threading, time\n"
        "from pathlib import Path\n"
        "from tests.support.handler_runs import run, typed_task\n"
        f"route = {{'type': 't', 'command': ['sh', '-c', 'echo $$ > {pid}; exec sleep 600']}}\n"
        "threading.Thread(target=run, args=(typed_task('t'), route), daemon=True).start()\n"
        f"while not (Path({str(pid)!r}).exists() and Path({str(pid)!r}).read_text()): time.sleep(0.005)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    wait_until(lambda: not is_running(int(pid.read_text())))


def test_a_success_leaves_nothing_running_and_waits_for_nobody_who_holds_its_output(tmp_path: Path) -> None:
    started_s = time.monotonic()
    ended = result(run(typed_task("t"), command("sh", "-c", "sleep 600 & echo $!")))
    assert time.monotonic() - started_s < 5
    wait_until(lambda: not is_running(int(ended["stdout"])))


def test_somebody_who_left_the_group_and_holds_the_output_is_not_waited_for() -> None:
    code = (
        "import os, sys, time\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); os.write(w, b'x')\n"
        "    time.sleep(600)\n"
        "os.read(r, 1)\n"  # only then is it out of the group
        "sys.stdout.write(open('/proc/self/task/%d/children' % os.getpid()).read()); sys.stdout.flush(); os._exit(0)\n"
    )
    started_s = time.monotonic()
    ended = result(run(typed_task("t"), python(code)))
    assert time.monotonic() - started_s < 5
    left = int(ended["stdout"])
    assert is_running(left), "in a worker it is for the executor to end it"
    os.kill(left, signal.SIGKILL)


def test_a_program_that_closes_its_output_is_waited_for_all_the_same() -> None:
    code = "import os, time; os.close(1); os.close(2); time.sleep(0.2); os._exit(7)"
    assert failure(run(typed_task("t"), python(code))).kind == "exit 7"


def test_without_pidfd_its_end_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert result(run(typed_task("t"), command("echo", "x")))["stdout"] == "x\n"


def test_an_exit_code_that_somebody_else_took_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: Any) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", taken)
    assert failure(run(typed_task("t"), command("true"))).error == "true has ended, and its exit code was lost"


def test_many_commands_run_in_threads_at_the_same_time() -> None:
    routes = routes_of(command("sh", "-c", 'echo "$FILEQ_JOB_ATTEMPT"; echo "$FILEQ_JOB_ATTEMPT" >&2'))
    outcomes: dict[int, Ran] = {}

    def one(number: int) -> None:
        outcomes[number] = run_task(typed_task("t", attempt=number), routes, threading.Event())

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {n: result(ended)["stdout"] for n, ended in outcomes.items()} == {n: f"{n}\n" for n in range(1, 17)}


# commands that jobs bring along


def test_a_job_can_bring_a_line_for_the_shell_where_that_is_allowed(tmp_path: Path) -> None:
    task = typed_task("command", {"command": "echo one | tr a-z A-Z; echo $FILEQ_JOB_ID"})
    assert result(run(task, allow_commands=True))["stdout"] == "ONE\nj1\n"


def test_a_job_can_bring_a_list_too_and_no_shell_reads_it() -> None:
    task = typed_task("command", {"command": ["echo", "$HOME", "{filepath}"]})
    assert result(run(task, allow_commands=True))["stdout"] == "$HOME {filepath}\n"


def test_the_failure_of_a_command_that_a_job_brought_is_its_exit_code() -> None:
    ended = failure(run(typed_task("command", {"command": "echo no >&2; exit 4"}), allow_commands=True))
    assert ended == Failed("the command exited with 4: no", "exit 4")


@pytest.mark.parametrize("payload", [None, {}, "ls", *({"command": it} for it in ("", " ", [], [1], [""], "a\0"))])
def test_a_job_without_a_command_in_it_fails_for_good(payload: Any) -> None:
    ended = failure(run(typed_task("command", payload), allow_commands=True))
    assert ended.is_permanent, ended
