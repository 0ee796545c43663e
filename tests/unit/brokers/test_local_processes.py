"""Which processes of this machine are gone. Real processes; a live one is never called gone."""

from __future__ import annotations

import os
import platform
import sys

import pytest
from msgspec.structs import replace

from fileq.brokers import local_processes
from fileq.brokers.local_processes import NO_PROCESS, Neighbours, ProcessId, process_of, this_holder, this_process
from tests.support.registered_process import RegisteredProcess


def is_gone(process: ProcessId) -> bool:
    return Neighbours().is_gone(process)


def test_this_process_is_identified_and_not_gone() -> None:
    own = this_process()
    assert own.pid == os.getpid()
    assert own.boot_id
    assert own.pid_start > 0
    assert not is_gone(own)


def test_a_running_process_is_not_gone_and_a_killed_one_is_before_and_after_its_parent_waits() -> None:
    with RegisteredProcess() as process:
        assert not is_gone(process.id)
        process.kill()
        assert is_gone(process.id), "a zombie runs nothing"
        process.wait()
        assert is_gone(process.id)


def test_a_stopped_process_is_not_gone() -> None:
    with RegisteredProcess() as process:
        process.stop()
        assert not is_gone(process.id)


def test_a_process_whose_first_thread_has_ended_is_not_gone() -> None:
    program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[600]).start(); " + (
        "ctypes.CDLL(None).syscall(60, 0)"  # the exit of one thread, on x86-64
        if platform.machine() == "x86_64"
        else "ctypes.CDLL(None).syscall(93, 0)"
    )
    with RegisteredProcess(sys.executable, "-c", program) as process:
        process.wait_for_state("Z")
        assert not is_gone(process.id)


def test_a_pid_that_another_process_has_got_is_gone() -> None:
    with RegisteredProcess() as process:
        assert is_gone(replace(process.id, pid_start=process.id.pid_start - 1))


@pytest.mark.parametrize("elsewhere", [{"boot_id": "another"}, {"namespaces": "1-2"}, {"boot_id": ""}])
def test_a_process_of_another_machine_or_namespace_is_never_gone(elsewhere: dict[str, str]) -> None:
    with RegisteredProcess() as process:
        process.kill()
        assert not is_gone(replace(process.id, **elsewhere))


def test_an_entry_that_names_no_process_is_not_gone() -> None:
    own = this_process()
    assert not any(is_gone(replace(own, pid=pid)) for pid in (0, -1, 2**31, 2**70))
    assert not is_gone(NO_PROCESS)


def test_a_process_that_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount with hidepid does for processes of other users."""
    with RegisteredProcess() as process:
        this_process()
        monkeypatch.setattr(local_processes, "_status", lambda pid: None)
        assert not is_gone(replace(process.id, pid_start=1))


def test_a_process_of_another_user_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    with RegisteredProcess() as process:
        monkeypatch.setattr(os, "kill", refuse)
        assert not is_gone(process.id)
        monkeypatch.undo()


def test_each_neighbour_is_looked_up_once() -> None:
    with RegisteredProcess() as process:
        neighbours = Neighbours()
        assert not neighbours.is_gone(process.id)
        process.kill()
        assert not neighbours.is_gone(process.id)
        assert Neighbours().is_gone(process.id)


def test_the_holder_of_a_lease_names_its_process() -> None:
    assert process_of(this_holder()) == this_process()
    assert this_holder() == this_holder()
    assert [process_of(text) for text in ("", "x", "a b c d", "a b c d e", "a  c 1 2")] == [NO_PROCESS] * 5
