"""Executors run handlers, in child processes (process/) or in threads (thread.py). They know nothing of brokers.

protocol.py      what the pump expects of an executor
by_isolation.py  the executor of a worker: passes each task to the executor that its route wants
stop_request.py  how a request to stop changes the outcome of a task
wait_policy.py   whether the pump waits for a batch of tiny tasks
task_output.py   what one task prints; thread_output.py finds the task that prints in a thread
finish_signal.py how threads signal that tasks have ended
"""
