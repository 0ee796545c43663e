"""Proves that nothing was lost, on a live system, and puts back what was.

**The law.** produced + adopted = pending + scheduled (retrying too) + running + dead + completed + cancelled + deleted.
A census reads both sides in one atomic look, so no job in motion is ever between two places. What other programs
pushed and nobody has claimed yet is on the right side only, until a claim adopts it: so `drift + unclaimed` must be 0,
where drift is left minus right. How many are unclaimed can be told only by walking the queues, which takes time:

1. If the walk was quiet, that is, nothing moved between the census before it and the one after it, the number is exact.
2. If not, it lies between 0 and all that waits. A drift above 0 proves a loss whatever the number is; one below minus
   all that waits proves a surplus; anything between proves nothing, and is never reported as drift.

A verdict must come out the same at two looks.

**The cross-check.** The record of a job that has not ended names a place, and at every instant the bytes that the
record holds lie in that place: each verb moves both in one step. So `astray`, one atomic look of the broker at record
and place, has no false alarms even on a busy system; likewise `unrecorded`, for an element that has no record. Walking
pages of lists and records, which shift meanwhile, only finds candidates: what is reported is what these looks confirm
after a pause. Ids seen in lists are remembered in a bitmap of bounded size, which may take a few unseen ones for seen
(others in each run) but none the other way round; all the rest is one page at a time.

Slots without a heartbeat are dead only if they are silent at two looks half a ttl apart: the living renew at a third
of it, and come back from an outage within a sixth.

**Repair.** In this order, since each step can make later ones needless: silent slots are reaped as a reaper would; jobs
that are astray go back where their record says, what nobody runs any more to the front of its queue; elements without
a record get one, those in queues only as far as the law says that they were ours; files whose job left no trace but in
the ledger are enqueued again under its id (see ledger.py on when that is certain); the counters are changed last, by
what is still out of balance then, and only if it is exactly that at that moment. Each is one atomic step that looks
again first. So a kill -9 at any instant leaves damage or repair and nothing between; workers, reapers or another fsck
that were faster leave nothing to do; and fsck, run again, goes on where it ended. A worker that lives after all while
its slot is reaped finds itself fenced, and the job runs twice at worst.
"""

from fileq.commands.admin.fsck.check import fsck
from fileq.commands.admin.fsck.report import Report

__all__ = ["Report", "fsck"]
