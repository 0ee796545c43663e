"""Proves that no job was lost, while workers are running, and repairs what was.

**The balance.** produced + adopted = pending + scheduled (with retrying and deferred) + running + dead + completed +
cancelled + deleted. One census reads both sides atomically, so no moving job is ever between two places. A job that
another program pushed is on the right side only, until a claim adopts it. So `drift + unclaimed` must be 0, where drift
is left minus right. The number of unclaimed jobs is known only after a walk through the queues, which takes time:

1. If the walk was quiet, that is, nothing moved between the census before it and the census after it, it is exact.
2. Otherwise it is between 0 and the number of all pending jobs. A drift above 0 then proves a loss; a drift below minus
   the number of pending jobs proves a surplus; anything between proves nothing and is never reported.

Two measurements must agree before a difference is reported.

**The cross-check.** The record of a job that has not ended names a place, and at every instant the bytes that the
record holds are in that place: each verb of the broker changes both in one step. So the broker's `lost`, one atomic
look at record and place, has no false alarms on a busy system; nor has `unrecorded`, for bytes without a record. The
walk reads lists and records page by page while they change, so it only finds candidates. A candidate is reported if the
broker confirms it after a pause. The ids that the walk saw in lists are kept in a Bloom filter of bounded size: no
false negatives, a few false positives, different ones in each walk. Everything else is one page at a time.

**Batches.** The counts of a batch must add up, and agree with its members (`BatchCheck`). A member that has ended, or
has no record, must be counted.

A slot without a heartbeat counts as dead only if two looks, half a ttl apart, find it silent. Live slots renew at a
third of the ttl, and reconnect after an outage within a sixth.

**Repair.** In this order, because each step can make later ones unnecessary: dead slots are reaped as a reaper would
do; lost jobs are restored to the place that their record names, or, if they were running, to the front of their queue;
bytes without a record get one, in queues only as many as the balance proves to be ours; files whose job left a trace
only in the ledger are enqueued again under its id (if that is certain: `find_lost_files`); members of batches that
have ended are counted. Counts of a batch that do not add up are only reported: no record says which is wrong. After a
repair everything is checked again. The counters are changed last, after two whole rounds that found nothing to repair,
by the difference that remains, and only if it is still exactly that.

Each repair is one atomic step of the broker that checks again first. So a kill -9 at any instant leaves each repair
done or not done, and the next fsck continues. Where a worker, a reaper or another fsck was faster, the step does
nothing. A worker that is alive after all while its slot is reaped is fenced; at worst its job runs twice.
"""

from fileq.commands.admin.fsck.check import fsck
from fileq.commands.admin.fsck.report import Report

__all__ = ["Report", "fsck"]
