"""The write lock beside a database: a caller that stops waiting for it, for any reason, leaves it free."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fileq.brokers.sqlite import database
from fileq.brokers.sqlite.database import WriteLock
from tests.support.waiting import wait_until

SHORT_S = 0.05
LONG_S = 30.0


@pytest.fixture
def make_lock(tmp_path: Path) -> Iterator[Callable[[], WriteLock]]:
    """Makes locks that exclude each other as those of different processes do: flock is held by a descriptor."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(WriteLock(str(tmp_path / "lock"))))


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fileq-flock"]


def test_one_caller_holds_the_lock_at_a_time(make_lock):
    first, second = make_lock(), make_lock()
    assert first.acquire(0)
    assert not second.acquire(SHORT_S)
    first.release()
    assert second.acquire(LONG_S)


def test_a_caller_that_gave_up_keeps_its_turn_in_the_line(make_lock):
    holder, gives_up = make_lock(), make_lock()
    holder.acquire(0)
    for _ in range(5):
        assert not gives_up.acquire(0.01)
        assert len(waiting_threads()) == 1
    holder.release()
    assert gives_up.acquire(LONG_S)
    assert not holder.acquire(SHORT_S)


def test_a_lock_granted_after_its_caller_gave_up_is_released(make_lock):
    holder, gives_up, third = make_lock(), make_lock(), make_lock()
    holder.acquire(0)
    assert not gives_up.acquire(SHORT_S)
    holder.release()
    wait_until(lambda: not waiting_threads(), what="the lock to be granted")
    assert third.acquire(SHORT_S)


def test_a_lock_granted_at_the_moment_of_the_timeout_is_released(make_lock, monkeypatch):
    class LateEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            holder.release()
            super().wait(LONG_S)
            return False

    holder, gives_up, third = make_lock(), make_lock(), make_lock()
    holder.acquire(0)
    with monkeypatch.context() as patch:
        patch.setattr(database, "Event", LateEvent)
        assert not gives_up.acquire(SHORT_S)
    assert third.acquire(SHORT_S)


def test_a_lock_granted_after_close_is_released_with_its_descriptor(make_lock, tmp_path: Path):
    def descriptors() -> int:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sum(os.readlink(link) == str(tmp_path / "lock") for link in links if os.path.islink(link))

    holder, gives_up = make_lock(), make_lock()
    holder.acquire(0)
    assert not gives_up.acquire(SHORT_S)
    gives_up.close()
    holder.release()
    wait_until(lambda: descriptors() == 1, what="the closed lock's descriptor")
    assert holder.acquire(LONG_S)
    wait_until(lambda: not waiting_threads(), what="the thread of the closed lock")  # it ends after its descriptor


def test_a_wait_ended_by_a_signal_leaves_the_lock_free(make_lock):
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    def interrupt_once_it_waits() -> None:
        wait_until(waiting_threads)
        os.kill(os.getpid(), signal.SIGUSR1)

    holder, interrupted, third = make_lock(), make_lock(), make_lock()
    holder.acquire(0)
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=interrupt_once_it_waits)
    try:
        sender.start()
        with pytest.raises(Interrupted):
            interrupted.acquire(LONG_S)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    holder.release()
    wait_until(lambda: not waiting_threads(), what="the lock to be granted")
    assert third.acquire(SHORT_S)
