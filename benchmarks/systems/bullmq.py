"""BullMQ on Node."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.system import PROGRAMS, Command, Place, System, common_environment

SLOTS = (16, 50)  # with 50 it is faster than with 16, the count of the others


def bullmq_systems(node: str, modules: Path) -> list[System]:
    """`modules`: the directory with node_modules."""
    return [_system(node, modules, slots) for slots in SLOTS]


def _system(node: str, modules: Path, slots: int) -> System:
    def command(place: Place, *words: str) -> Command:
        variables = common_environment(place, slots) | {"BENCH_NODE": str(modules)}
        return Command((node, str(PROGRAMS / "bullmq_program.mjs"), *words), variables)

    return System(
        name="bullmq" if slots == 16 else f"bullmq {slots}",
        settings=f"1 process, concurrency {slots}; the last 10,000 completed jobs are kept, as fileq keeps them",
        worker=lambda place: command(place, "worker", str(slots)),
        client=command,
        slots=slots,
        share=1.0,
    )
