"""The installed fileq: `fileq worker` and `fileq all`; records, events, counters, metrics and logs are on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from benchmarks.systems.system import PROGRAMS, Command, Place, System, common_environment

FILEQ = Path(sys.executable).parent / "fileq"
SLOTS = (4, 16, 64)
SETTINGS = "isolation: {isolation}, count: {slots}; else the defaults: records, events, counters, metrics, JSON logs"


def fileq_systems() -> list[System]:
    on_redis = [_system(isolation, slots, "redis") for isolation in ("process", "thread") for slots in SLOTS]
    on_sqlite = [_system(isolation, 16, "sqlite") for isolation in ("process", "thread")]
    return [*on_redis, *on_sqlite]


def _system(isolation: str, slots: int, store: Literal["redis", "sqlite"]) -> System:
    def command(place: Place, *words: str) -> Command:
        config = _write_config(place, isolation, slots, store)
        arguments = (str(FILEQ), *words, "--config", str(config), "--app-dir", str(PROGRAMS))
        return Command(arguments, common_environment(place, slots))

    def client(place: Place) -> Command:
        config = _write_config(place, isolation, slots, store)
        environment = common_environment(place, slots) | {"BENCH_CONFIG": str(config)}
        return Command((sys.executable, str(PROGRAMS / "fileq_program.py")), environment)

    return System(
        name=f"fileq {isolation} {slots}" + (" sqlite" if store == "sqlite" else ""),
        settings=SETTINGS.format(isolation=isolation, slots=slots),
        worker=lambda place: command(place, "worker"),
        client=client,
        slots=slots,
        store=store,
        is_fileq=True,
        files=lambda place: command(place, "all", str(place.directory)),
        scan=lambda place: command(place, "producer", str(place.directory), "--once"),
    )


def _write_config(place: Place, isolation: str, slots: int, store: str) -> Path:
    """A file that is JSON, which is also YAML."""
    routes = [{"type": kind, "use": "fileq_program:typed"} for kind in ("noop", "pickup", "spin", "hold")]
    config = {
        "broker": store,
        "worker": {"count": slots, "isolation": isolation},
        "producer": {"scan_dir": str(place.directory or place.folder), "rate_limit_per_sec": 0},
        "handlers": [*routes, {"match": "**/*", "use": "fileq_program:on_file"}],
        "observability": {"metrics_bind": "127.0.0.1", "metrics_port": 0},
        "sqlite": {"path": str(place.database)},
    }
    if store == "redis":
        config["redis"] = {"addr": f"127.0.0.1:{place.redis_port}"}
    file = place.folder / "config.yaml"
    file.write_text(json.dumps(config))
    return file
