"""CPU time and memory of whole process trees, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessTimes:
    """`own_us` is the process itself, `ended_us` are its children that ended and that it waited for."""

    pid: int
    parent: int
    own_us: float
    ended_us: float


@dataclass(frozen=True)
class TreeTimes:
    """CPU time of a process (`root_us`) and of all below it (`below_us`), ended ones included."""

    root_us: float = 0.0
    below_us: float = 0.0

    def __add__(self, other: TreeTimes) -> TreeTimes:
        return TreeTimes(self.root_us + other.root_us, self.below_us + other.below_us)

    def __sub__(self, other: TreeTimes) -> TreeTimes:
        return TreeTimes(self.root_us - other.root_us, self.below_us - other.below_us)


def parse_stat(line: str) -> ProcessTimes:
    """A line of /proc/PID/stat. The name of the process may contain blanks and parentheses."""
    pid, rest = line.split(" ", 1)
    fields = rest[rest.rindex(")") + 2 :].split()
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    return ProcessTimes(int(pid), int(fields[1]), (user + system) * TICK_US, (ended_user + ended_system) * TICK_US)


def parse_pss_kb(text: str) -> int:
    """The proportional set size in a text of /proc/PID/smaps_rollup."""
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def tree_of(root: int, processes: Iterable[ProcessTimes]) -> list[ProcessTimes]:
    """The process `root`, if it is there, and all its descendants."""
    by_pid, children = {}, dict[int, list[int]]()
    for process in processes:
        by_pid[process.pid] = process
        children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in by_pid:
            found.append(by_pid[pid])
        waiting.extend(children.get(pid, ()))
    return found


def times_of(root: int, processes: Iterable[ProcessTimes]) -> TreeTimes:
    root_us = below_us = 0.0
    for process in tree_of(root, processes):
        below_us += process.ended_us
        if process.pid == root:
            root_us = process.own_us
        else:
            below_us += process.own_us
    return TreeTimes(root_us, below_us)


def running_processes() -> list[ProcessTimes]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found.append(parse_stat(Path("/proc", name, "stat").read_text()))
            except OSError:
                continue  # it ended meanwhile
    return found


def tree_times(roots: Iterable[int]) -> TreeTimes:
    processes = running_processes()
    return sum((times_of(root, processes) for root in roots), TreeTimes())


def tree_pids(root: int) -> list[int]:
    return [process.pid for process in tree_of(root, running_processes())]


def tree_pss_mb(root: int) -> float:
    total_kb = 0
    for pid in tree_pids(root):
        try:
            total_kb += parse_pss_kb(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except (OSError, StopIteration):
            continue  # it ended meanwhile, or is a zombie
    return total_kb / 1024
