"""Claims jobs, runs them and settles them. A handler that crashes, hangs or leaks harms its own job only.

    pump.py            the turns: collect outcomes, settle and claim in one round trip, submit
    calls.py           the calls of settle_and_claim that are in flight
    prefetch.py        how many jobs to claim in advance; run_queue.py holds these claims until they can run
    slot.py, slots.py  one slot as a state machine; all slots of the process
    attempts.py        from a claim to a task (prepare.py), and from its outcome to a settlement (policies.py)
    breakers.py, limits.py, roots.py  whether a claimed job may run now; deferrals.py, deferred_release.py if it may not
    follow_ups.py      adds the jobs that follow to a settlement
    heartbeats.py      registers the slots and renews their leases
    executors/         run handlers in child processes or threads
    post_actions.py    moves or deletes files after their jobs are settled
    file_action.py     moves or deletes one file
    order_recovery.py  moves or deletes the files of workers that died
    reaper.py          gives back the jobs of slots without a heartbeat
    scheduler.py       promotes jobs that are due; schedule_firing.py, schedule_registration.py fire and write schedules
    batch_reconciler.py  repairs the counts of batches
    deliveries.py      sends webhooks

The loops (reaper, scheduler and so on) own no thread: runtime/ runs each of them in a thread of its own.
"""
