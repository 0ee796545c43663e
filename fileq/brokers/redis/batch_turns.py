"""A turn of the pump with members of batches: which script it needs, and what that script answers in addition.

A job that is labelled with a batch may be its member. A job can also join a batch while it runs, and then no label says
so. The usual script refuses to settle such a job before it changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fileq.brokers.redis.connection import ReplyError
from fileq.brokers.redis.scripts import Part
from fileq.brokers.redis.store import RedisStore
from fileq.core.settlement import Settlement


def may_be_member(s: Settlement) -> bool:
    """Whether its job, or a job that follows it, may be a member of a batch."""
    job = s.claim.job
    return (job is not None and job.batch_id is not None) or any(follow_up.joins for follow_up in s.follow_ups)


def with_members(store: RedisStore, answers: list[Any], parts: Sequence[Part]) -> tuple[list[Any], tuple[str, ...]]:
    """The answers of the parts, and the ids of the batches that they have finished.

    If the script has refused a member, all parts are sent again, to the script that counts members."""
    if any(isinstance(answer, ReplyError) and str(answer).startswith("BATCH ") for answer in answers):
        command = store.scripts.settle_and_claim(parts, has_members=True)
        again = store.link.checked(store.send([command], list).take()[0])
        # The first script may have settled some jobs: the second calls them "done already". The first claimed nothing.
        is_new = [part.verb == "claim" or isinstance(a, ReplyError) for part, a in zip(parts, answers, strict=True)]
        answers = [b if new else a for a, b, new in zip(answers, again, is_new, strict=False)] + again[len(parts) :]
    finished = answers[len(parts)] if len(answers) > len(parts) else ()
    return answers[: len(parts)], tuple(id.decode() for id in finished)
