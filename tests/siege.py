"""`make siege`: one client does its worst for SIEGE_MINUTES, on SQLite, then on Redis.

SIEGE=SQLite runs only the one whose name contains the word. Prints the slowest answers to probes, how many jobs were
completed per second without and with the client, the memory and the log of the program. Ends with 1 if a probe was not
answered with 200 within a second.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

from tests.support.servers import Server, available_servers
from tests.support.siege import Figures, besiege
from tests.support.worker_setup import open_worker_setup

CLIENTS = 1100
QUIET_S = 20.0
WITHIN_S = 1.0


def on_sqlite(directory: Path, seconds: float) -> list[Figures]:
    with open_worker_setup(directory, {"sqlite.path": str(directory / "fileq.db")}) as setup:
        return besiege(setup, seconds, CLIENTS, quiet_s=QUIET_S)


def on_redis(directory: Path, seconds: float) -> list[Figures]:
    servers = available_servers()
    with (
        Server(str(servers["redis"] or servers["valkey"])) as server,
        open_worker_setup(directory, {"redis.addr": server.address}) as setup,
    ):
        return besiege(setup, seconds, CLIENTS, quiet_s=QUIET_S)


SCENARIOS = {"SQLite": on_sqlite, "Redis": on_redis}


def main() -> int:
    seconds = float(os.environ.get("SIEGE_MINUTES", "5")) * 60
    is_wrong, out = False, sys.stdout
    # The programs of a run print their logs when they end, for the report of a failed test.
    with (
        contextlib.redirect_stdout(io.StringIO()),
        tempfile.TemporaryDirectory(prefix="fileq-siege-") as scratch,
    ):
        for name, scenario in SCENARIOS.items():
            if os.environ.get("SIEGE", "") not in name:
                continue
            directory = Path(scratch, name)
            directory.mkdir()
            for when, found in zip(("without", "with"), scenario(directory, seconds), strict=True):
                print(line_of(f"{name}, {when}", found), file=out, flush=True)
                is_wrong |= bool(found.wrong) or max(found.slowest_s.values()) > WITHIN_S
    return int(is_wrong)


def line_of(name: str, found: Figures) -> str:
    slowest = ", ".join(f"{part} {seconds:.2f} s" for part, seconds in found.slowest_s.items())
    wrong = f"; {len(found.wrong)} wrong: {found.wrong[:3]}" if found.wrong else ""
    used = f"{found.peak_mib} MiB at most, {found.log_kib} KiB of logs"
    more = f"; {found.sent}" if found.sent else ""
    return f"{name}: {found.probes} probes, slowest {slowest}{wrong}; {found.jobs_per_s:.0f} jobs/s; {used}{more}"


if __name__ == "__main__":
    sys.exit(main())
