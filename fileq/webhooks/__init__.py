"""Webhooks: what is sent to which receiver, and how. Standard Webhooks 1.0.0.

| module           | owns                                                                              |
|------------------|-----------------------------------------------------------------------------------|
| store.py         | the definitions: those of the configuration and those of the catalog; their state  |
| subscriptions.py | which deliveries follow, and their bodies; keeps a worker's definitions up to date    |
| sender.py        | one attempt of a delivery: a request within its time, to an address that may be called; |
|                  | what the answer means for the job and for the webhook                                 |

A delivery is a job of type `fileq.webhook`, enqueued in the step that settles or cancels the job that it is about.
So it exists exactly if the event happened; worker/ runs it like any job, in threads of its own.
"""
