"""What a test does with a page in a browser beside clicking: requests with its session, and answers to questions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.support.browser import Tab


def call(tab: Tab, method: str, path: str, body: object = None) -> Any:
    """A request to the API with the session of the browser."""
    options = {"method": method, "headers": {"Content-Type": "application/json"}}
    if body is not None:
        options["body"] = json.dumps(body)
    return tab.run(f"fetch('/api/v1{path}', {json.dumps(options)}).then((answer) => answer.json())")


def confirm(tab: Tab, word: str) -> None:
    tab.until("document.querySelector('#confirm').open")
    tab.click("#confirm button", word)
    tab.until("!document.querySelector('#confirm')?.open")  # the next page may be there already, without a dialog


@contextlib.contextmanager
def without_problems(tab: Tab) -> Iterator[None]:
    """Meanwhile the browser reports no error, no violation of the CSP and no request to another host."""
    tab.problems.clear()
    yield
    tab.drain()
    assert tab.problems == [], tab.problems
