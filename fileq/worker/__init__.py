"""Claims jobs, runs them and settles them. A handler that crashes, hangs or leaks harms its own job only.

    pump.py            the turns: collect outcomes, settle and claim in one round trip, submit
    slots.py           one slot as a state machine; all slots of the process
    attempts.py        from a claim to a task, also in advance, and from its outcome to a settlement (policies.py)
    breakers.py, limits.py, roots.py  whether a claimed job may run now; deferrals.py if it may not
    follow_ups.py      adds the jobs that follow to a settlement
    heartbeats.py      registers the slots and renews their leases
    executors/         run handlers in child processes or threads
    post_actions.py    moves or deletes files after their jobs are settled, also those of workers that died
    reaper.py          gives back the jobs of slots without a heartbeat
    scheduler.py       promotes jobs that are due, fires schedules and keeps those of the configuration on the broker
    batch_reconciler.py  repairs the counts of batches
    deliveries.py      sends webhooks

The loops (reaper, scheduler and so on) own no thread: runtime/ runs each of them in a thread of its own.
"""
