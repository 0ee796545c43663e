"""Finds jobs in long lists from the client's side, page by page. A script would block the server for a whole search.

Only reads. What it finds is a hint or half of a proof: the script that changes something checks it again
(lua/prelude/search.lua, lua/restore.lua).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore

PAGE = 2000  # more than one call of enqueue pushes
OVERLAP = 100
WALKS = 5
JOBS_PER_CALL = 50
FEW = 20  # jobs that a script searches without hints
SHORT = 500  # a list that the scripts search at once
EVERYWHERE = b"all"  # the hint for a search of the whole list
FAR = (-1, b"far")


class SearchedJob(NamedTuple):
    """A job that a script looks for: its keys and arguments, then the list that may hold these bytes ("" = none)."""

    keys: Sequence[str]
    args: Sequence[Argument]
    list: str
    raw: bytes


class Sightings(NamedTuple):
    """Where elements were seen, counted from the head. `absent` were not in the list at the end of the call, unless
    they were pushed during the call."""

    positions: dict[bytes, int]
    absent: frozenset[bytes]


Hints = Mapping[tuple[str, bytes], Argument]  # by list and bytes


def run_searching(
    store: RedisStore,
    script: str,
    jobs: Sequence[SearchedJob],
    head: Sequence[Argument] = (),
    hints: Hints | None = None,
) -> list[Any]:
    """The script's answer for each job. `head` are the arguments before those of the jobs.

    Where the script does not find a job at the ends of its list, this reads the list and calls the script again with
    the position. If the job has moved meanwhile, the script searches the whole list."""
    answers = run_batches(store, script, jobs, head, hints)
    far = [i for i, answer in enumerate(answers) if answer in FAR]
    if far:
        positions, _ = look_for_all(store, [(jobs[i].list, jobs[i].raw) for i in far])
        _run_again(store, script, jobs, head, answers, far, positions)
        far = [i for i in far if answers[i] in FAR]
        _run_again(store, script, jobs, head, answers, far, {(jobs[i].list, jobs[i].raw): EVERYWHERE for i in far})
    return answers


def _run_again(
    store: RedisStore,
    script: str,
    jobs: Sequence[SearchedJob],
    head: Sequence[Argument],
    answers: list[Any],
    numbers: Sequence[int],
    hints: Hints,
) -> None:
    again = run_batches(store, script, [jobs[i] for i in numbers], head, hints)
    for i, answer in zip(numbers, again, strict=True):
        answers[i] = answer


def run_batches(
    store: RedisStore, script: str, jobs: Sequence[SearchedJob], head: Sequence[Argument], hints: Hints | None = None
) -> list[Any]:
    """Calls the script until it has answered for every job; each call answers at least for one."""
    answers: list[Any] = []
    while len(answers) < len(jobs):
        batch = jobs[len(answers) : len(answers) + JOBS_PER_CALL]
        keys = [key for job in batch for key in job.keys]
        args = [arg for job in batch for arg in (*job.args, (hints or {}).get((job.list, job.raw), b""))]
        answers += store.run(script, keys, (*head, *args))
    return answers


def look_for_all(
    store: RedisStore, wanted: Iterable[tuple[str, bytes]]
) -> tuple[dict[tuple[str, bytes], Argument], set[tuple[str, bytes]]]:
    """Looks for elements, given by list and bytes. Returns the positions of those it saw, and those that are absent."""
    by_list: dict[str, set[bytes]] = {}
    for key, raw in wanted:
        by_list.setdefault(key, set()).add(raw)
    positions: dict[tuple[str, bytes], Argument] = {}
    absent: set[tuple[str, bytes]] = set()
    for key, raws in by_list.items():
        sightings = look_for(store, key, raws)
        positions.update(((key, raw), position) for raw, position in sightings.positions.items())
        absent.update((key, raw) for raw in sightings.absent)
    return positions, absent


def look_for(store: RedisStore, key: str, raws: Collection[bytes]) -> Sightings:
    """Reads the list once, from head to tail, and looks for these elements. For a short list the answer is empty."""
    if not raws or store.call("LLEN", key) <= SHORT:
        return Sightings({}, frozenset())
    wanted = frozenset(raws)
    positions: dict[bytes, int] = {}
    for _ in range(WALKS):
        if _walk(store, key, wanted, positions):
            return Sightings(positions, wanted - positions.keys())
    return Sightings(positions, frozenset())


def _walk(store: RedisStore, key: str, wanted: frozenset[bytes], positions: dict[bytes, int]) -> bool:
    """Whether the walk saw every element that was in the list all the time.

    Elements keep their order. So a page that begins with an element of the page before it continues that page. Pushes
    at the head make pages overlap more; removals near the head make them overlap less. If they do not overlap,
    elements may have been skipped, and the walk is given up."""
    start = 0
    before: frozenset[bytes] = frozenset()
    while True:
        page = store.call("LRANGE", key, start, start + PAGE - 1)
        if start and (not page or page[0] not in before):
            return False
        before = frozenset(page)
        if not wanted.isdisjoint(before):
            positions.update((raw, start + i) for i, raw in enumerate(page) if raw in wanted)
        if len(page) < PAGE or len(positions) == len(wanted):
            return True
        start += PAGE - OVERLAP
