"""What pages showed last, for the time in which the broker does not answer or as many pages search it as may do so at
the same time. Kept in memory, a bounded number of pages.

Belongs to a caller: a page is never shown to another one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

KEPT = 100
MAX_CHARS = 1_000_000
# In every page; see base.html.
_LIVE = '<body data-state="live"'
_AWAY = '<body data-state="away"'
_KEPT = '<body data-state="kept"'

PageKey: TypeAlias = tuple[str, str]  # the caller, and the address with its query


class LastKnown:
    def __init__(self) -> None:
        self._pages: OrderedDict[PageKey, str] = OrderedDict()

    def get(self, key: PageKey) -> str | None:
        return self._pages.get(key)

    def put(self, key: PageKey, text: str) -> None:
        if len(text) > MAX_CHARS:
            return
        self._pages[key] = text
        self._pages.move_to_end(key)
        while len(self._pages) > KEPT:
            self._pages.popitem(last=False)

    def greyed(self, text: str) -> str:
        """The page with the banner about the broker; the stylesheet greys its content."""
        return text.replace(_LIVE, _AWAY, 1)

    def noted(self, text: str) -> str:
        """The page with a quiet line that says that it is from memory."""
        return text.replace(_LIVE, _KEPT, 1)
