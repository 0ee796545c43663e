"""Requests made from openapi.json: whatever is sent, no answer is a 500, and each is one that is described."""

from __future__ import annotations

from pathlib import Path

from tests.support.api_fuzzer import fuzz, operations

REQUESTS = 200  # `make fuzz` sends more, and other ones each time


def test_no_request_that_the_description_suggests_is_answered_with_a_defect(tmp_path: Path) -> None:
    seen = fuzz(tmp_path, REQUESTS, is_repeatable=True)
    assert len(operations()) > 8
    done = sum(count for status, count in seen.items() if status < 300)
    assert done > REQUESTS // 12, f"the requests hardly get past the checks: {seen}"
