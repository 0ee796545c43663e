"""`make bench`, or `python -m benchmarks [WORD …] [options]`. docs/benchmarks.md explains it."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measures import ALL, QUICK, Bench, Measure, Sizes
from benchmarks.report import PAGE, report, with_report
from benchmarks.results import Results
from benchmarks.runs import RunFailed
from benchmarks.selection import UnknownWord, select
from benchmarks.systems import all_systems, installed
from benchmarks.systems.install import cache_directory
from benchmarks.systems.system import System
from tests.support.servers import Server, available_servers

JSON = Path(__file__).parents[1] / "build" / "bench.json"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        return _list()
    if options.page:
        text = report(Results.read(options.json))
        PAGE.write_text(with_report(PAGE.read_text(), text))
        return 0
    try:
        measures, systems = select(options.words, all_systems())
    except UnknownWord as error:
        print(error, file=sys.stderr)
        return 2
    systems = installed(systems, options.cache)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is killed
    binary = options.server or available_servers()["redis"] or available_servers()["valkey"]
    with tempfile.TemporaryDirectory(prefix="fileq-bench-") as folder, Server(binary) as server:
        if options.keep and options.json.exists():
            results = Results.read(options.json)
        else:
            results = Results.new(systems, server=_version(server), rounds=options.rounds, is_quick=options.quick)
        bench = Bench(server, QUICK if options.quick else Sizes(), Path(folder))
        _measure(results, measures, systems, bench, options.rounds, options.json)
    print(report(results))
    print(f"figures: {options.json}", file=sys.stderr)
    return 1 if results.data["failures"] else 0


def _measure(
    results: Results, measures: list[Measure], systems: list[System], bench: Bench, rounds: int, file: Path
) -> None:
    """A round measures everything once, the systems in turn, so that other load on the machine affects all alike."""
    for number in range(rounds):
        for measure in measures:
            for system in filter(measure.applies, systems):
                if results.runs(system.name, measure.name) > number:
                    continue
                started_s = time.monotonic()
                try:
                    figures = measure.run(system, bench)
                except RunFailed as error:
                    results.add_failure(system.name, measure.name, str(error))
                    line = f"failed: {error}"
                else:
                    results.add(system.name, measure.name, figures)
                    line = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
                seconds = time.monotonic() - started_s
                results.add_time(measure.name, seconds)
                print(
                    f"{number + 1}/{rounds} {measure.name:8} {system.name:24} {seconds:3.0f} s  {line}",
                    file=sys.stderr,
                    flush=True,
                )
                results.write(file)


def _version(server: Server) -> str:
    about = server.client().info("server")
    return f"valkey {about['valkey_version']}" if "valkey_version" in about else f"redis {about['redis_version']}"


def _list() -> int:
    for measure in ALL:
        print(f"{measure.name:10} {measure.title}")
    for system in all_systems():
        print(f"{system.name:24} {system.settings}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("words", nargs="*", help="measures and systems; without a measure all, without a system all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast it is")
    parser.add_argument("--rounds", type=int, default=3, help="medians of this many (default: 3)")
    parser.add_argument("--json", type=Path, default=JSON, help="file for the figures of each round")
    parser.add_argument("--continue", dest="keep", action="store_true", help="leave out what the JSON file has already")
    parser.add_argument("--page", action="store_true", help="write the tables of the JSON file into docs/benchmarks.md")
    parser.add_argument("--list", action="store_true", help="list measures and systems with their settings")
    parser.add_argument("--cache", type=Path, default=cache_directory(), help="where the peers are installed")
    parser.add_argument("--server", default="", help="server binary (default: redis-server, else Valkey of the venv)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
