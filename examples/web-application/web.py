"""A web application that answers at once and works later: it enqueues jobs, and waits for those that are quick.

POST /texts            a text: enqueued; answers 202 with the address of the job
POST /texts?wait=5     the same, but waits up to five seconds for the result
GET  /texts/ID         the state of a job, and its result or error
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server

from tasks import Text, count_words

import fileq

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

MOST_BYTES = 1 << 20
client = fileq.Client()  # connects at its first call


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    try:
        status, body = answer(environ)
    except ValueError as error:
        status, body = "400 Bad Request", {"error": str(error)}
    except fileq.BrokerUnavailable:
        status, body = "503 Service Unavailable", {"error": "the queue can't be reached; try again"}
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


def answer(environ: WSGIEnvironment) -> tuple[str, dict[str, Any]]:
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    if method == "POST" and path == "/texts":
        return submit(environ)
    if method == "GET" and path.startswith("/texts/"):
        return show(client.job(path.removeprefix("/texts/")))
    return "404 Not Found", {"error": "POST /texts or GET /texts/ID"}


def submit(environ: WSGIEnvironment) -> tuple[str, dict[str, Any]]:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > MOST_BYTES:
        return "413 Content Too Large", {"error": f"at most {MOST_BYTES} bytes"}
    text = environ["wsgi.input"].read(length).decode(errors="replace")
    wait_s = int(parse_qs(environ.get("QUERY_STRING", "")).get("wait", ["0"])[0])
    # A browser that sends its form twice sends the same key twice: there is one job while the first is unfinished.
    handle = client.enqueue(count_words, Text(text), unique_key=environ.get("HTTP_IDEMPOTENCY_KEY", ""))
    if wait_s:
        with suppress(TimeoutError, fileq.FileqError):  # show() says how it ended
            handle.wait(min(wait_s, 30))
        return show(handle)
    return "202 Accepted", {"id": handle.id, "url": f"/texts/{handle.id}"}


def show(handle: fileq.Handle[Any]) -> tuple[str, dict[str, Any]]:
    job = handle.status()
    if job.status == "unknown":
        return "404 Not Found", {"error": "there is no such job, or it ended long ago"}
    return "200 OK", {"id": job.id, "status": job.status, "result": job.result, "error": job.error}


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    with make_server("127.0.0.1", port, application) as server:
        print(f"http://127.0.0.1:{server.server_port}/texts", flush=True)
        server.serve_forever()
