"""Queries about jobs and files, for commands, the server and clients. They change nothing.

job_filter.py     the conditions that choose jobs; knows no broker
job_selection.py  the jobs that meet them: all of them, or by pages
documents.py      what the outside sees of a job
job_ids.py        ids of bytes that are not a job, and the beginnings of ids
job_queries.py    the next of a queue, the history of a job or a file, what keeps a waiting job from running
dead_jobs.py      groups of dead jobs; what a dead job looks like when it is put back into its queue
file_pages.py     the files of the ledger, by pages and by directory

Importing this package imports nothing.
"""
