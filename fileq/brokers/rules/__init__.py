"""The rulebook: every verb of the protocol once, in Python, over a unit of work.

A verb reads in bulk what its call names, decides job by job, and its changes are written at the end, all in one step.
`unit_of_work.py` is what a verb works on: it gathers the changes, and writes them by the statements in `tables.py`.
`sqlite/` supplies a database file, `memory.py` a database without one. Redis has its own implementation of the same
verbs, in Lua; the conformance suite and the state machine tests compare the two.

`entries.py` takes jobs in, `batches.py` counts them, `settlements.py` ends them, `queues.py` is the hot path of workers
and producers, `operators.py` what people ask and change, `repairs.py` what fsck puts right.
"""
