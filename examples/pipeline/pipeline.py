"""Two stages: a list of orders is split by customer, and a follow-up for each customer writes the bill.

The follow-ups are enqueued in the step that completes the first job. If it fails or its worker is killed before, there
are none, and the next attempt makes them; afterwards all of them exist, each once.
"""

from __future__ import annotations

import csv
import json
import os
from collections import defaultdict

import fileq

ORDERS, BILLS = os.path.abspath("orders"), os.path.abspath("bills")


def split(job: fileq.JobView, context: fileq.Context) -> dict[str, int]:
    amounts: dict[str, list[float]] = defaultdict(list)
    with job.open("r", newline="") as file:
        try:
            for row in csv.DictReader(file):
                amounts[row["customer"]].append(float(row["amount"]))
        except (KeyError, TypeError, ValueError) as error:
            raise fileq.Permanent(f"not a list of orders: {error!r}") from error
    for customer, some in sorted(amounts.items()):
        path = write_json(ORDERS, f"{job.id}-{customer}", some)
        context.output(path)
        context.enqueue("bill", {"customer": customer, "orders": path})
    return {"customers": len(amounts)}


@fileq.handler(type="bill", timeout="30s")
def bill(job: fileq.JobView, context: fileq.Context) -> dict[str, float]:
    with open(job.payload["orders"]) as file:
        total = sum(json.load(file))
    path = write_json(BILLS, job.payload["customer"], {"customer": job.payload["customer"], "total": total})
    context.output(path)
    return {"total": total}


@fileq.handler(type="list_failed")
def list_failed(job: fileq.JobView, context: fileq.Context) -> None:
    """`on_dead` of the first stage: here a log line; it could be a message to the sender of the list."""
    context.log.warning("list.failed", path=job.payload["path"], error=job.payload["error"])


def write_json(directory: str, name: str, value: object) -> str:
    """In one step, so that a second run replaces the file and no reader sees half of it."""
    if os.sep in name or name.startswith("."):
        raise fileq.Permanent(f"{name!r} can't be the name of a file")
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"{name}.json")
    with open(f"{path}.tmp", "w") as file:
        json.dump(value, file)
    os.replace(f"{path}.tmp", path)
    return path
