"""Executors run handlers, in child processes (process/) or in threads (thread.py). They know nothing of brokers.

protocol.py      what the pump expects of an executor; whether to wait for tiny tasks
by_isolation.py  the executor of a worker: passes each task to the executor that its route wants
task_output.py   what one task prints, in a thread or in a child
"""
