"""BullMQ on Node."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.system import PROGRAMS, Command, Place, System, common_environment

SLOTS = 16


def bullmq_system(node: str, modules: Path) -> System:
    """`modules`: the directory with node_modules."""

    def command(place: Place, *words: str) -> Command:
        variables = common_environment(place, SLOTS) | {"BENCH_NODE": str(modules)}
        return Command((node, str(PROGRAMS / "bullmq_program.mjs"), *words), variables)

    return System(
        name="bullmq",
        settings="1 process, concurrency 16; the last 10,000 completed jobs are kept, as fileq keeps them",
        worker=lambda place: command(place, "worker", str(SLOTS)),
        client=command,
        share=1.0,
    )
