"""How services are stopped: all within one time, and at once at the second signal."""

import threading
from queue import SimpleQueue

from fileq.runtime.roles import stop_in_time
from tests.support.waiting import wait_until


class Stubborn:
    """A service that ends when the time it was given is over, when it must hurry, or when the test lets it."""

    name = "stubborn"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.deadlines: list[float] = []
        self.may_end = threading.Event()

    def start(self) -> None:
        self.calls.append("start")

    def quiet(self) -> None:
        self.calls.append("quiet")

    def stop(self, timeout_s: float) -> None:
        self.calls.append("stop")
        self.deadlines.append(timeout_s)
        self.may_end.wait(timeout_s)

    def hurry(self) -> None:
        self.calls.append("hurry")
        self.may_end.set()

    def problem(self) -> str:
        return ""

    def is_turning(self) -> bool:
        return True


class Signals:
    """Stands in for StopSignals: a signal comes when the test says so."""

    def __init__(self) -> None:
        self._said: SimpleQueue[bool] = SimpleQueue()

    def come(self) -> None:
        self._said.put(True)

    def end_wait(self) -> None:
        self._said.put(False)

    def wait(self) -> bool:
        return self._said.get()


def stopping(
    services: list[Stubborn], timeout_s: float, was_hurried: list[bool] | None = None
) -> tuple[threading.Thread, Signals]:
    signals = Signals()

    def stop() -> None:
        is_hurried = stop_in_time(services, timeout_s, signals)  # type: ignore[arg-type]
        if was_hurried is not None:
            was_hurried.append(is_hurried)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    return thread, signals


def test_all_are_quiet_before_the_first_is_stopped():
    order: list[str] = []
    services = [Stubborn(), Stubborn()]
    for n, service in enumerate(services):
        service.may_end.set()
        service.quiet = lambda n=n: order.append(f"quiet {n}")  # type: ignore[method-assign]
        service.stop = lambda timeout_s, n=n: order.append(f"stop {n}")  # type: ignore[method-assign]
    stopping(services, 30.0)[0].join(10)
    assert order == ["quiet 0", "quiet 1", "stop 0", "stop 1"]


def test_it_is_over_as_soon_as_all_have_stopped():
    services = [Stubborn(), Stubborn()]
    was_hurried: list[bool] = []
    thread, _ = stopping(services, 30.0, was_hurried)
    for service in services:
        service.may_end.set()
    thread.join(10)
    assert not thread.is_alive()
    assert was_hurried == [False]


def test_services_share_one_deadline():
    services = [Stubborn(), Stubborn()]
    thread, _ = stopping(services, 0.05)
    thread.join(10)
    assert not thread.is_alive()
    assert services[0].deadlines[0] <= 0.05
    assert services[1].deadlines[0] < 0.01


def test_the_second_signal_waits_for_nobody():
    service = Stubborn()
    was_hurried: list[bool] = []
    thread, signals = stopping([service], 30.0, was_hurried)
    wait_until(lambda: "stop" in service.calls)
    signals.come()
    thread.join(10)
    assert not thread.is_alive()
    assert was_hurried == [True]
    assert service.calls == ["quiet", "stop", "hurry"]
