"""The setup of the producer tests: a broker, a directory for files, and the program that uses both."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import config_from
from fileq.core.job import Job, decode
from tests.support.program import Program
from tests.support.waiting import wait_until

# Short times keep the tests quick. Tests of these times set their own.
QUICK: Mapping[str, object] = {"producer.settle": "50ms", "producer.settle_unclosed": "200ms"}


class BrokerSetup:
    """A broker that programs and the test share, and the directory of its files."""

    def __init__(self, kind: str, directory: Path, settings: Mapping[str, object]) -> None:
        self.kind = kind
        self.directory = directory
        self.settings = settings
        self.inbox = directory / "in"
        self.inbox.mkdir()

    @contextlib.contextmanager
    def open(self) -> Iterator[FullBroker]:
        """Opens the broker for the test."""
        values: dict[str, dict[str, object]] = {}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            values.setdefault(section, {})[name] = value
        broker = open_broker(config_from(values))
        try:
            yield broker
        finally:
            broker.close()

    def producer(self, *, inbox: Path | None = None, wait: bool = True, **settings: object) -> Program:
        """Starts `fileq producer`; a setting of another section is named as observability__log_level."""
        return Program(
            "producer", str(inbox or self.inbox), cwd=self.directory, settings=self.all_settings(**settings), wait=wait
        )

    def all_settings(self, **settings: object) -> dict[str, object]:
        named = {key.replace("__", ".") if "__" in key else f"producer.{key}": value for key, value in settings.items()}
        return {**QUICK, "producer.rate_limit_per_sec": 0, **self.settings, **named}

    def write(self, name: str | bytes, content: bytes = b"x", inbox: Path | None = None) -> bytes:
        """Writes and closes a file with this content; returns its path."""
        path = os.path.join(os.fsencode(inbox or self.inbox), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def jobs(self) -> list[Job]:
        """All jobs in the queues."""
        with self.open() as broker:
            return jobs_of(broker)

    def names(self) -> list[str]:
        return sorted(os.path.relpath(job.filepath, self.inbox) for job in self.jobs())

    def wait_for_names(self, *names: str, timeout_s: float = 15.0) -> None:
        """Waits until exactly these files have jobs."""
        with self.open() as broker:
            self._wait_for(broker, sorted(names), timeout_s)

    def _wait_for(self, broker: FullBroker, names: list[str], timeout_s: float) -> None:
        def found() -> list[str]:
            return sorted(os.path.relpath(job.filepath, self.inbox) for job in jobs_of(broker))

        with contextlib.suppress(TimeoutError):
            wait_until(lambda: found() == names, timeout_s, every_s=0.02)
        assert found() == names


def jobs_of(broker: FullBroker) -> list[Job]:
    return [decode(raw) for queue in ("high", "low") for page in broker.pages(queue) for raw in page]


def wait_for_scans(program: Program, count: int = 1, timeout_s: float = 20.0) -> None:
    """Waits until the program has finished this many scans."""
    name = "producer_scan_duration_seconds_count"
    wait_until(lambda: program.metric(name) >= count, timeout_s, f"{count} scans", every_s=0.02)


def wait_for_new_scan(program: Program, times: int = 1) -> None:
    """Waits until a scan has started and finished from now on; the current scan may have passed a new file already."""
    wait_for_scans(program, int(program.metric("producer_scan_duration_seconds_count")) + times + 1)


def pending(broker: FullBroker) -> int:
    return sum(broker.census().pending.values())


def wait_pending(broker: FullBroker, count: int, timeout_s: float = 60.0) -> None:
    """Waits until the queues hold at least `count` jobs."""
    wait_until(lambda: pending(broker) >= count, timeout_s, f"{count} jobs in the queues", every_s=0.1)
