"""For programs that enqueue jobs and wait for them: Client, AsyncClient, tasks; and what commands share with them.

client.py, async_client.py  the interface; the second runs the first in threads
tasks.py                    @fileq.task, and calls of tasks that are still to be enqueued
handle.py, batch_handle.py  one job and one batch of a client: status, result, waiting
address.py                  the configuration of a client, or the address of its server
transport.py                what a client needs of a queue; broker_transport.py does it on a broker,
                            http_transport.py through a server
options.py, file_jobs.py    filters of jobs and options of schedules; the jobs of files
job_endings.py              waits until jobs have ended; event_stream.py follows all events
schedule_changes.py         adds, removes, pauses, resumes and runs schedules

Importing this package imports nothing. Never runs a handler and never prints. Queries are in fileq/queries.
"""
