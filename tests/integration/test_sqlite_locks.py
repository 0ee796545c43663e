"""The write lock beside a database: whoever gives up waiting for it, however that was, leaves it free for others."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fileq.brokers.sqlite import locks
from fileq.brokers.sqlite.locks import WriteLock
from tests.support.waiting import wait_until

SHORT_S = 0.05
LONG_S = 30.0


@pytest.fixture
def make_lock(tmp_path: Path) -> Iterator[Callable[[], WriteLock]]:
    """Each as another process would have it: flock tells them apart by their descriptors."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(WriteLock(str(tmp_path / "lock"))))


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fileq-flock"]


def test_one_holds_it_at_a_time(make_lock):
    first, second = make_lock(), make_lock()
    assert first.acquire(0)
    assert not second.acquire(SHORT_S)
    first.release()
    assert second.acquire(LONG_S)


def test_a_caller_that_gave_up_finds_its_place_kept(make_lock):
    holder, impatient = make_lock(), make_lock()
    holder.acquire(0)
    for _ in range(5):
        assert not impatient.acquire(0.01)
        assert len(waiting_threads()) == 1
    holder.release()
    assert impatient.acquire(LONG_S)
    assert not holder.acquire(SHORT_S)


def test_a_lock_that_comes_when_nobody_wants_it_any_more_is_let_go(make_lock):
    holder, impatient, third = make_lock(), make_lock(), make_lock()
    holder.acquire(0)
    assert not impatient.acquire(SHORT_S)
    holder.release()
    wait_until(lambda: not waiting_threads(), what="the lock to come")
    assert third.acquire(SHORT_S)


def test_a_lock_that_comes_at_the_moment_of_giving_up_is_let_go(make_lock, monkeypatch):
    class LateEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            holder.release()
            super().wait(LONG_S)
            return False

    holder, impatient, third = make_lock(), make_lock(), make_lock()
    holder.acquire(0)
    with monkeypatch.context() as patch:
        patch.setattr(locks, "Event", LateEvent)
        assert not impatient.acquire(SHORT_S)
    assert third.acquire(SHORT_S)


def test_a_lock_that_comes_after_closing_is_let_go_with_its_descriptor(make_lock, tmp_path: Path):
    def descriptors() -> int:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sum(os.readlink(link) == str(tmp_path / "lock") for link in links if os.path.islink(link))

    holder, impatient = make_lock(), make_lock()
    holder.acquire(0)
    assert not impatient.acquire(SHORT_S)
    impatient.close()
    holder.release()
    wait_until(lambda: descriptors() == 1, what="the closed lock's descriptor")
    assert holder.acquire(LONG_S)
    assert waiting_threads() == []


def test_a_wait_that_a_signal_ended_leaves_the_lock_free(make_lock):
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
    helper = threading.Thread(target=interrupt_once_it_waits)
    try:
        helper.start()
        with pytest.raises(Interrupted):
            interrupted.acquire(LONG_S)
    finally:
        helper.join()
        signal.signal(signal.SIGUSR1, before)
    holder.release()
    wait_until(lambda: not waiting_threads(), what="the lock to come")
    assert third.acquire(SHORT_S)
