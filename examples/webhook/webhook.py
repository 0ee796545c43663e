"""Announces a file to a URL: a POST of JSON with the job's id, by which the receiver detects duplicates."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import fileq

LATER = (408, 425, 429, 503)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: that would turn the POST into a GET without a body."""

    def redirect_request(self, *_: Any) -> None:
        return None


@fileq.handler("**/*", timeout=60, max_retries=10, backoff={"base": 2, "max": "10m"})
def announce(job: fileq.JobView, context: fileq.Context) -> dict[str, int]:
    body = {"id": job.id, "file": os.path.basename(job.filepath), "bytes": job.filesize, "found": job.creation_time}
    request = urllib.request.Request(
        os.environ["WEBHOOK_URL"],
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": job.id},
    )
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=min(10, context.time_left)) as answer:
            return {"status": answer.status}
    except urllib.error.HTTPError as refusal:
        with refusal:
            raise verdict(refusal) from refusal


def verdict(refusal: urllib.error.HTTPError) -> Exception:
    """The exception for an HTTP error: retry when the server says, retry after the usual backoff, or never retry."""
    if refusal.code in LATER:
        return fileq.Retry(f"the server is busy: {refusal}", after=retry_after_s(refusal))
    if refusal.code < 500:
        return fileq.Permanent(f"the server refuses: {refusal}")
    return RuntimeError(f"the server failed: {refusal}")


def retry_after_s(refusal: urllib.error.HTTPError) -> float | None:
    """Seconds until the server accepts a retry; None if it does not say, so the route's backoff applies."""
    text = refusal.headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
