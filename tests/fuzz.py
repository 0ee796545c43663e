"""`make fuzz`: requests made from openapi.json for FUZZ_MINUTES, other ones each time. Ends with an error at a 500.

Prints how many requests were sent and how often each status was answered.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.api_fuzzer import fuzz, operations

REQUESTS = 1000  # to one server; the next one begins with an empty database


def main() -> None:
    minutes = float(os.environ.get("FUZZ_MINUTES", "5"))
    end_s = time.monotonic() + 60 * minutes
    seen = Counter[int]()
    while time.monotonic() < end_s:
        with tempfile.TemporaryDirectory() as directory:
            seen += fuzz(Path(directory), REQUESTS, is_repeatable=False)
    answered = ", ".join(f"{status}: {count}" for status, count in sorted(seen.items()))
    print(f"{seen.total()} requests to {len(operations())} endpoints in {minutes:g} min, no 500; {answered}")


if __name__ == "__main__":
    main()
