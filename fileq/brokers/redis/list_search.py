"""Runs scripts on jobs that may be anywhere in long lists, without a script that searches a whole list.

This side reads a list page by page, from its tail, and sees where the jobs are. Each script call gets a few jobs and a
window of the list that holds them. The script looks into the window itself, in the same step in which it changes
something (lua/prelude/search.lua). So what is read here is a hint, or half of the proof that a job is not in its list.

All jobs of a call cost one pass over the list. A kill -9 leaves each script call executed or not received.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore
from fileq.core.errors import BrokerUnavailable

JOBS_PER_CALL = 100  # a script call stays far below 20 ms
BYTES_PER_CALL = 1 << 20  # of the jobs; one job may be longer
MARGIN = 200  # elements on either side of a window: other programs move the list between two calls
NEARBY = 1000  # elements that are searched before the list is read
ROUNDS = 20
FAR = (-1, b"far")
_T = TypeVar("_T")

# The record as the proof that its job is not in a list; PROOF_FIELDS in lua/prelude/search.lua.
PROOF_FIELDS = ("state", "json", "queue", "worker", "due", "queued", "started", "attempts", "restored")


class SearchedJob(NamedTuple):
    """A job that a script looks for: its keys and arguments, and the list that may hold these bytes ("" = none).

    `proof` are the PROOF_FIELDS of its record, read before the list is."""

    keys: Sequence[str]
    args: Sequence[Argument]
    list: str
    raw: bytes
    proof: bytes = b""


class SearchScript(NamedTuple):
    """A script with prelude/search.lua. `head` and `head_keys` are its arguments and keys before those of the jobs.

    `removes` are the answers after which a job is no longer in its list. A script that takes proofs is called with the
    proof for a job that is not in its list. For other scripts the answer is 0 then."""

    name: str
    head: Sequence[Argument] = ()
    removes: frozenset[Any] = frozenset()
    takes_proofs: bool = False
    head_keys: Sequence[str] = ()


class _Window(NamedTuple):
    """The part of a list that a script searches; `first` is counted from the tail."""

    key: str
    first: int
    size: int


def run_searching(
    store: RedisStore, script: SearchScript, total: int, describe: Callable[[Sequence[int]], Sequence[SearchedJob]]
) -> list[Any]:
    """The script's answer for each of `total` jobs. `describe` returns the jobs with these numbers as they are now.

    A job that moves away between the look at the list and the script is looked for again."""
    search = _Search(store, script, [FAR[0]] * total)
    left = list(range(total))
    for _ in range(ROUNDS):
        if not left:
            break
        search.jobs.update(zip(left, describe(left), strict=True))
        search.run(left)
        left = [i for i in left if search.answers[i] in FAR]
    if left:
        raise changes_too_fast(search.jobs[left[0]].list)
    return search.answers


def run_on_records(
    store: RedisStore,
    script: SearchScript,
    ids: Sequence[str],
    own: Callable[[int], tuple[Sequence[str], Sequence[Argument]]],
    *,
    is_dead_too: bool = False,
) -> list[Any]:
    """run_searching() for jobs with records, which say in which queue to look. `own` returns the keys and arguments of
    the job with this number. `is_dead_too`: dead jobs are looked for in the dead-letter list."""

    def describe(numbers: Sequence[int]) -> list[SearchedJob]:
        found = store.calls_in_batches([("HMGET", store.keys.record(ids[i]), *PROOF_FIELDS) for i in numbers])
        jobs = []
        for i, values in zip(numbers, found, strict=True):
            state, raw, queue = values[:3]
            key = store.keys.queue_of.get((queue or b"").decode(errors="replace"), "") if state == b"pending" else ""
            key = store.keys.dead if is_dead_too and state == b"dead" else key
            proof = b"\0".join(value or b"" for value in values)
            jobs.append(SearchedJob(*own(i), key, raw or b"", proof))
        return jobs

    return run_searching(store, script, len(ids), describe)


class _Search:
    """One call: its jobs by number, and the answers so far."""

    def __init__(self, store: RedisStore, script: SearchScript, answers: list[Any]) -> None:
        self._store = store
        self._script = script
        self.answers = answers
        self.jobs: dict[int, SearchedJob] = {}

    def run(self, numbers: Sequence[int]) -> None:
        for batch in _batches(numbers, self._length):
            # The last search or page ended there, and commands go through a list in order.
            keys = dict.fromkeys(self.jobs[i].list for i in batch if self.jobs[i].list)
            nearby = [_Window(key, max(0, self._store.last_offsets.get(key, 0) - MARGIN), NEARBY) for key in keys]
            self._call(batch, nearby)
        far: dict[str, list[int]] = {}
        for i in numbers:
            if self.answers[i] in FAR and self.jobs[i].list:
                far.setdefault(self.jobs[i].list, []).append(i)
        for key, some in far.items():
            self._answer_absent(self._pass_over(key, some))

    def _length(self, number: int) -> int:
        return len(self.jobs[number].raw)

    def _pass_over(self, key: str, numbers: Sequence[int]) -> list[int]:
        """Passes over the list once and calls the script for every job it sees. Returns those that are not there."""
        wanted: dict[bytes, list[int]] = {}
        for i in reversed(numbers):
            wanted.setdefault(self.jobs[i].raw, []).append(i)
        walk = ListWalk(self._store, key)
        while wanted and (page := walk.read()):
            seen: list[tuple[int, int]] = []  # index in the page, number of the job
            for index, raw in enumerate(page):
                if raw in wanted:
                    seen.append((index, wanted[raw].pop()))
                    if not wanted[raw]:
                        del wanted[raw]
            removed: set[int] = set()
            for batch in _batches(seen, lambda pair: self._length(pair[1])):
                first = walk.offset + batch[0][0] - len(removed)
                size = batch[-1][0] - batch[0][0] + 1
                self._call([i for _, i in batch], [_Window(key, max(0, first - MARGIN), size + 2 * MARGIN)])
                removed.update(index for index, i in batch if self.answers[i] in self._script.removes)
            walk.move_on(removed)
        return [i for some in wanted.values() for i in some]

    def _answer_absent(self, absent: Sequence[int]) -> None:
        if not self._script.takes_proofs:
            for i in absent:
                self.answers[i] = 0
            return
        for batch in _batches(absent, self._length):
            self._call(batch, (), with_proofs=True)

    def _call(self, numbers: Sequence[int], windows: Sequence[_Window], *, with_proofs: bool = False) -> None:
        store, script = self._store, self._script
        keys = list(script.head_keys)
        args: list[Argument] = [len(windows)]
        for window in windows:
            args += (store.keys.list_numbers[window.key], window.first, window.size)
        args += script.head
        for i in numbers:
            job = self.jobs[i]
            keys += job.keys
            args += job.args
            if script.takes_proofs:
                args.append(job.proof if with_proofs else b"")
        answers, next_offsets = store.run(script.name, keys, args)
        for i, answer in zip(numbers, answers, strict=True):
            self.answers[i] = answer
        found = ((w.key, offset) for w, offset in zip(windows, next_offsets, strict=True) if offset >= 0)
        store.last_offsets.update(found)


def _batches(some: Sequence[_T], length: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Parts of at most JOBS_PER_CALL, and of about BYTES_PER_CALL by the `length` of each."""
    batch, left = list[_T](), BYTES_PER_CALL
    for one in some:
        left -= length(one)
        if batch and (left < 0 or len(batch) == JOBS_PER_CALL):
            yield batch
            batch, left = [], BYTES_PER_CALL - length(one)
        batch.append(one)
    if batch:
        yield batch


# Reads a list page by page, from its tail (the old end) to its head, while other programs change it. Only reads.
#
# Elements keep their order. So a page that holds the newest elements of the page before it continues that page,
# however far the list has moved. Claims and removals make pages overlap less; then the walk steps back until they
# overlap.


PAGE = 2000
OVERLAP = 200
FIRST_PAGE = 8  # elements: how long they are is not known yet
PAGE_BYTES = 1 << 24  # or one element
_IN_A_ROW = 3  # elements that show where a page continues: one alone may be a copy with the same bytes
_STEPS_BACK = 200


class ListWalk:
    """Sees every element that is in the list during the whole walk; of the others some, and some twice.

    `read` returns the next elements, and `move_on` must follow it. `offset` is where they begin, counted from the
    tail."""

    def __init__(self, store: RedisStore, key: str) -> None:
        self._store = store
        self._key = key
        self._newest: Sequence[bytes] = ()  # elements that were read and not removed, the newest last
        self._page: list[bytes] = []
        self._is_at_head = False
        self._steps_back = 0
        self.offset = 0

    def read(self) -> list[bytes]:
        """The next elements, oldest first; empty after the head. BrokerUnavailable if the list changes too fast."""
        self._page = []
        while not self._page and not self._is_at_head:
            start, known, elements = self._read_overlapping()
            self._is_at_head = len(elements) < PAGE + OVERLAP
            self.offset, self._page = start + known, elements[known:]
        return self._page

    def _read_overlapping(self) -> tuple[int, int, list[bytes]]:
        """Elements, where they begin, and how many of them are known. Steps back until some are, or to the tail."""
        start = max(0, self.offset - OVERLAP)
        while self._steps_back <= _STEPS_BACK:
            elements = read_from_tail(self._store, self._key, start, PAGE + OVERLAP)
            known = _continuation(elements, self._newest)
            if known is not None or start == 0:
                return start, known or 0, elements
            start = max(0, start - PAGE)
            self._steps_back += 1
        raise changes_too_fast(self._key)

    def move_on(self, removed: Collection[int]) -> None:
        """`removed` are the indexes in the page of elements that the caller has removed from the list."""
        kept = [raw for i, raw in enumerate(self._page) if i not in removed] if removed else self._page
        self._newest = (*self._newest, *kept[-OVERLAP:])[-OVERLAP:]
        self.offset += len(kept)


def _continuation(elements: Sequence[bytes], newest: Sequence[bytes]) -> int | None:
    """Where elements begin that are newer than `newest`; None if that does not show."""
    if not newest:
        return 0
    row = min(_IN_A_ROW, len(newest))
    ends: dict[bytes, list[int]] = {raw: [] for raw in newest}
    for end, raw in enumerate(elements, start=1):
        if raw in ends and end >= row:
            ends[raw].append(end)
    for newest_end in range(len(newest), row - 1, -1):
        wanted = tuple(newest[newest_end - row : newest_end])
        for end in ends[wanted[-1]]:
            if tuple(elements[end - row : end]) == wanted:
                return end
    return None


def read_from_tail(store: RedisStore, key: str, offset: int, size: int) -> list[bytes]:
    """Up to `size` elements from this offset on, counted from the tail; oldest first."""
    return list(reversed(store.call("LRANGE", key, -(offset + size), -(offset + 1))))


def list_pages(store: RedisStore, key: str, size: int) -> Iterator[list[bytes]]:
    """All elements, oldest first. The caller may remove elements of a page before it takes the next one.

    A page has at most `size` elements, and about PAGE_BYTES if its elements are as long as those of the last page.
    While other programs change the list, some may be missed or returned twice."""
    offset, page = 0, list[bytes]()
    wanted = min(size, store.page_sizes.get(key, FIRST_PAGE))
    while True:
        elements = read_from_tail(store, key, offset, len(page) + wanted)
        is_read = frozenset(page)
        kept = next((i for i, raw in enumerate(elements) if i == len(page) or raw not in is_read), len(elements))
        offset, page = offset + kept, elements[kept : kept + wanted]
        is_last = len(page) < wanted
        if page:
            fitting = PAGE_BYTES * len(page) // (sum(map(len, page)) or 1)
            wanted = min(size, 4 * wanted, max(1, fitting))
            store.last_offsets[key], store.page_sizes[key] = offset, wanted
            yield page
        if is_last:
            return


def changes_too_fast(key: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"the list {key} changes faster than it can be searched; repeat the command")
