"""Claims jobs, runs them and settles them. A handler that crashes, hangs or leaks harms its own job only.

    pump.py            the state machine of a job in a worker, from its claim to its settlement, turn by turn
    prefetch.py        how many jobs are claimed in advance
    heartbeats.py      when leases are renewed, and what the registry shows
    deferrals.py       limits and roots: whether a claimed job may run now; when it is due again if not
    breakers.py        the same for routes whose jobs fail
    settlements.py     the retry policies; the order for the file and the jobs that follow, on the settlement
    executors/         run handlers in child processes or threads
    post_actions.py    moves or deletes files after their jobs are settled, also those of workers that died
    reaper.py          gives back the jobs of slots without a heartbeat
    scheduler.py       promotes jobs that are due, fires schedules and keeps those of the configuration on the broker
    batch_reconciler.py  repairs the counts of batches
    deadlines.py       buries waiting jobs that missed their deadline

The loops (reaper, scheduler and so on) own no thread: runtime/ runs each of them in a thread of its own.
"""
