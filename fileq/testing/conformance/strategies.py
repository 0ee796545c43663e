"""The values that the state machine draws: few ids, paths and slots, so that its steps often meet."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from fileq.brokers.types import Entry, Revival
from fileq.core.job import Claim, Version, decode, encode, rfc3339_ms
from fileq.core.outcome import FollowUp, Output
from fileq.core.settlement import (
    Settlement,
    Verb,
    bury,
    cancel,
    complete,
    release,
    retry,
    skip_vanished,
)
from fileq.testing.conformance.builders import UNDECODABLE, a_job, burial, deferred, failed, foreign, id_of, recovered
from fileq.testing.conformance.harness import START_MS

QUEUES = ("high", "low")
SLOTS = ("s1", "s2", "s3", "s4")
OUR_IDS = ("ours-1", "ours-2", "ours-3", "ours-4", "ours-5")  # never used by another program, so never in two places
MADE_IDS = ("made-1", 'made %0A "2"\n')  # of follow-ups and of schedules
SHARED_IDS = ("shared-1", 'shared "2" \\ ü')
FOREIGN_IDS = ("foreign-1",)
ALL_IDS = (*OUR_IDS, *MADE_IDS, *SHARED_IDS, *FOREIGN_IDS)
KEYS = ("k1", 'k "2" \\ ü')
DEADLINES = tuple(rfc3339_ms(START_MS + after_ms) for after_ms in (0, 30_000, 5_000_000))
SCHEDULES = ("nightly", "hourly")
OUTPUTS = (Output(b"/out/a", 1, "v1"), Output(b"/out/\xff", 2, ""))
PATHS = (b"/data/a", b"/data/\xff b")
SIGNATURES = ("v1", "v2", "v3", "v3-i1", "v3-i2", "v3-i2-cab", "v3-i3-cab", "v3-ccd")
DEVICES = ("", "8:1", "8:2")
GARBAGE = (UNDECODABLE["text"], UNDECODABLE["not UTF-8"], UNDECODABLE["an empty object"])

Death: TypeAlias = Callable[[Claim], Settlement]
Arrival: TypeAlias = Entry | tuple[str, bytes]  # enqueued, or pushed by another program

# A job that is pushed again is a copy with the same bytes or with other bytes.
SPELLINGS: tuple[Callable[[str], bytes], ...] = (
    foreign,
    lambda id: foreign(id, x_note="kept"),
    lambda id: encode(a_job(id)),
    lambda id: foreign(id) + b"\n",
    lambda id: msgspec.json.encode({"id": id, "type": "t"}),
    lambda id: msgspec.json.encode({"id": id, "filepath": "/data/a"}),
)


def made_job(number: int, key: str | None = None, delay_ms: int = 0) -> FollowUp:
    """A follow-up or the job of a schedule. The second of them is about a version."""
    job = a_job(MADE_IDS[number], parent_id="any", unique_key=key)
    return FollowUp(job, "low", delay_ms, version=Version(PATHS[0], "v1") if number else None)


# The ways to settle a claim. Those that keep the job come first, because hypothesis draws them more often.
ENDS: tuple[Callable[[Claim], Settlement], ...] = (
    failed,
    release,
    partial(failed, delay_ms=0, kind=""),
    burial,
    deferred,
    recovered,
    partial(deferred, delay_ms=0, reason='odd "reason" \\ ü\n'),
    partial(failed, delay_ms=40_000, error='odd "error" \\ ü\n'),
    complete,
    partial(complete, result=b'{"pages": 3}', duration_ms=5, leaves=Version(PATHS[0], "v3", "8:1")),
    partial(complete, superseded=True),
    lambda claim: replace(complete(claim), order=b"complete 1-2\n/in/a"),
    lambda claim: replace(burial(claim), order=b"bury \n/in/\xff"),
    skip_vanished,
    lambda claim: bury(claim, claim.raw, error="file vanished", kind="FileVanished", refused=True, vanished=True),
    cancel,
    lambda claim: replace(complete(claim), follow_ups=(made_job(0), made_job(1, KEYS[0])), outputs=OUTPUTS),
    lambda claim: replace(complete(claim), follow_ups=(made_job(1, KEYS[1], 1000),), outputs=OUTPUTS[:1]),
    lambda claim: replace(failed(claim), follow_ups=(made_job(0, KEYS[0]), made_job(0))),
    lambda claim: replace(release(claim), follow_ups=(made_job(1),)),
    lambda claim: replace(burial(claim), follow_ups=(made_job(0, KEYS[1]),)),
    lambda claim: bury(claim, claim.raw, error="killed", died=True),
    lambda claim: retry(claim, claim.raw, delay_ms=500, error="killed", died=True),
)
DEATHS: tuple[Death, ...] = (
    recovered,
    lambda claim: retry(claim, claim.raw, delay_ms=1000, error="worker died", died=True),
    lambda claim: bury(claim, claim.raw, error="worker died", died=True),
    lambda claim: replace(bury(claim, claim.raw, error="worker died", died=True), order=b"of a reaper"),
    lambda claim: replace(bury(claim, claim.raw, error="died", died=True), follow_ups=(made_job(0), made_job(1))),
)

BURIALS: tuple[Death, ...] = (
    partial(burial, error="deadline passed", kind="DeadlinePassed", refused=True),
    lambda claim: replace(burial(claim, refused=True), order=b"bury \n/in/a", follow_ups=(made_job(0), made_job(1))),
)

queues = st.sampled_from(QUEUES)
slots = st.lists(st.sampled_from(SLOTS), unique=True, max_size=4)
which = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8, 13])  # an index counted from the newest
ends = st.integers(0, len(ENDS) - 1)
all_ends = st.lists(ends, min_size=len(SLOTS), max_size=len(SLOTS))
versions = st.builds(Version, st.sampled_from(PATHS), st.sampled_from(SIGNATURES), st.sampled_from(DEVICES))
an_entry = st.builds(
    lambda id, queue, version, always, delay_ms, key, deadline: Entry(
        a_job(id, unique_key=key, deadline=deadline), queue, version, always, delay_ms
    ),
    st.sampled_from((*OUR_IDS, *SHARED_IDS)),
    queues,
    st.none() | versions | versions,
    st.sampled_from([False, False, True]),
    st.sampled_from([0, 0, 0, 1, 1000, 40_000]),
    st.sampled_from([None, None, *KEYS]),
    st.sampled_from([None, None, *DEADLINES]),
)
follow_ups = st.lists(
    st.builds(made_job, st.integers(0, 1), st.sampled_from([None, *KEYS]), st.sampled_from([0, 0, 1000])), max_size=2
)
pushed_job = st.builds(
    lambda queue, id, spell: (queue, spell(id)),
    queues,
    st.sampled_from((*SHARED_IDS, *FOREIGN_IDS)),
    st.sampled_from(SPELLINGS),
)
pushed_garbage = st.tuples(queues, st.sampled_from(GARBAGE))
arrivals = st.lists(st.one_of(*[an_entry, pushed_job] * 4, pushed_garbage), min_size=1, max_size=3)


def settlement(end: Callable[[Claim], Settlement], claim: Claim) -> Settlement:
    """Settles a claim this way, or buries it: bytes that are not a job can only be buried or released."""
    try:
        return end(claim)
    except (ValueError, AssertionError):
        return burial(claim)


def as_batch(settlements: Iterable[Settlement]) -> list[Settlement]:
    """Keeps what one call may settle with one defined result.

    Brokers may go verb by verb, and may trim a list of ended jobs once a batch or once a job. The results differ if an
    id has ended twice, so at most one settlement completes or cancels."""
    by_verb = sorted(settlements, key=lambda s: list(Verb).index(s.verb))
    endings = [s for s in by_verb if s.verb in (Verb.COMPLETE, Verb.CANCEL)]
    return [s for s in by_verb if s not in endings[1:]]


def revival(raw: bytes, queue: str) -> Revival:
    id = id_of(raw)
    if id.startswith("raw-"):
        return Revival(raw, id, raw, queue)
    return Revival(raw, id, encode(decode(raw).but(retries=0, recoveries=0, error=None, failed_at=None)), queue)
