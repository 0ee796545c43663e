"""Webhooks: what is sent to which receiver, and how. Standard Webhooks 1.0.0.

| module           | owns                                                                              |
|------------------|-----------------------------------------------------------------------------------|
| store.py         | the definitions: those of the configuration and those of the catalog; their state  |
| subscriptions.py | which deliveries follow from a settlement or a cancellation                        |
| watch.py         | keeps the definitions of a worker up to date                                       |
| event_body.py    | the body of a delivery, within its size                                            |
| address_rules.py | which addresses may be called                                                      |
| sender.py        | one request: resolved once, to a checked address, within its time                  |
| attempt.py       | one attempt of a delivery: what the answer means for the job and for the webhook   |

A delivery is a job of type `fileq.webhook`, enqueued in the step that settles or cancels the job that it is about.
So it exists exactly if the event happened; worker/ runs it like any job, in threads of its own.
"""
