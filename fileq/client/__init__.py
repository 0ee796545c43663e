"""For programs that enqueue jobs and wait for them: Client, AsyncClient, tasks; and what commands share with them.

client.py, async_client.py  the interface; the second runs the first in threads
handle.py                   one job of a client: its status, its result
tasks.py                    @fileq.task; default_client.py is the client that tasks use by themselves
transport.py                what a client needs of a queue; broker_transport.py does it on a broker, http_transport.py
                            through a server (http_*.py)
address.py                  the configuration of a client
batch_*.py                  batches: options, handle, status, changes, waiting
job_options.py, new_entries.py  options and entries of new jobs
job_endings.py              waits until jobs have ended; shared_reads.py reads the states for many waits in one call
queries.py, job_*.py, dead_groups.py, file_pages.py, obstacles.py  queries about jobs and files
revivals.py                 dead jobs as they are put back into their queues

Importing this package imports nothing. Never runs a handler and never prints.
"""
