"""For programs that enqueue jobs and wait for them: Client, AsyncClient, tasks; and what commands share with them.

client.py, async_client.py  the interface; the second runs the first in threads
handle.py                   one job of a client: its status, its result
tasks.py                    @fileq.task; default_client.py is the client that tasks use by themselves
transport.py                what a client needs of a queue; broker_transport.py is that on a broker
address.py                  the configuration of a client
job_options.py, new_entries.py  options and entries of new jobs
job_endings.py              waits until jobs have ended; shared_reads.py makes one call of the questions of many waits
queries.py, job_*.py, obstacles.py, revivals.py  questions about jobs, and dead ones put back

Importing this package imports nothing. Never runs a handler and never prints.
"""
