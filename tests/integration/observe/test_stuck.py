"""/healthz while a loop stands still: 503, with the name of what is stuck."""

import json
import threading
import urllib.error
import urllib.request
from contextlib import closing

from fileq.config import config_from
from fileq.core.events import ignore
from fileq.observe.http import Endpoints
from fileq.runtime import worker_service
from fileq.runtime.worker_service import WorkerService
from fileq.worker.pump import Gates
from tests.support.waiting import wait_until


class Service:
    def __init__(self, name, *, is_turning=True):
        self.name = name
        self.turns = is_turning

    def problem(self):
        return ""

    def is_turning(self):
        return self.turns


def healthz(services):
    with closing(Endpoints("127.0.0.1", 0, services, lambda: b"")) as endpoints:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{endpoints.port}/healthz", timeout=5) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)


def test_a_service_that_stands_still_is_named():
    services = [Service("reaper"), Service("worker", is_turning=False), Service("producer")]
    assert healthz(services) == (503, {"stuck": ["worker"]})
    assert healthz(services[::2]) == (200, {"status": "ok"})


class StandingPump:
    """A pump whose turn takes until the test ends it."""

    is_quiet = is_idle = False
    running_count = reply_count = 0

    def __init__(self):
        self.goes_on = threading.Event()

    def start(self): ...

    def turn(self, *, is_woken):
        self.goes_on.wait()
        self.is_idle = True
        return 0

    is_turn_due = True

    def finish(self): ...


class NoExecutor:
    def close(self): ...


def test_a_pump_whose_turn_does_not_end_is_not_turning(monkeypatch):
    pump = StandingPump()
    monkeypatch.setattr(worker_service, "stuck_after_s", lambda config: 0.2)
    config, gates = config_from({}), Gates(*[None] * 4)
    service = WorkerService(config, pump, NoExecutor(), None, gates, on_failure=lambda error: None, emit=ignore)
    service.start()
    try:
        assert service.is_turning()
        wait_until(lambda: not service.is_turning(), timeout_s=10)
        assert healthz([service]) == (503, {"stuck": ["worker"]})
    finally:
        pump.goes_on.set()
        service.stop(10)
