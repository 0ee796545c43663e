"""`make fuzz`: requests made from openapi.json for FUZZ_MINUTES, other ones each time. Ends with an error at a 500.

The broker is SQLite, or with FUZZ_BROKER=redis a Redis server on a private port. Prints how many requests were sent and
how often each status was answered.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.api_fuzzer import fuzz, operations
from tests.support.servers import Server, available_servers

REQUESTS = 1000  # to one server; the next one begins with an empty database


def main() -> None:
    minutes = float(os.environ.get("FUZZ_MINUTES", "5"))
    end_s = time.monotonic() + 60 * minutes
    seen = Counter[int]()
    with contextlib.ExitStack() as opened:
        server = None
        if os.environ.get("FUZZ_BROKER") == "redis":
            servers = available_servers()
            server = opened.enter_context(Server(str(servers["redis"] or servers["valkey"])))
        values = {"broker": "redis", "redis": {"addr": server.address}} if server is not None else {}
        while time.monotonic() < end_s:
            with tempfile.TemporaryDirectory() as directory:
                seen += fuzz(Path(directory), REQUESTS, is_repeatable=False, values=values)
            if server is not None:
                server.reset()
    answered = ", ".join(f"{status}: {count}" for status, count in sorted(seen.items()))
    print(f"{seen.total()} requests to {len(operations())} endpoints in {minutes:g} min, no 500; {answered}")


if __name__ == "__main__":
    main()
