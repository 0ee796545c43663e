"""The one table of pages. A new page is a function with `@PAGES.add(…)` in a module, and a template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fileq.server.console import (
    admin_page,
    batches_page,
    dead_page,
    files_page,
    jobs_page,
    operations_page,
    overview_page,
    queues_page,
    scheduled_page,
)
from fileq.server.console.page import ConsolePage, PageList, PageRequest
from fileq.server.route import NoQuery

GLOSSARY = PageList()


@GLOSSARY.add("/words", "Glossary", "words.html", changes_with="", serves_limited=True)
def words(request: PageRequest[NoQuery]) -> Mapping[str, Any]:
    return {}


# Those with a letter are in the navigation, in this order.
PAGES: tuple[ConsolePage, ...] = (
    *overview_page.PAGES,
    *jobs_page.PAGES,
    *dead_page.PAGES,
    *files_page.PAGES,
    *queues_page.PAGES,
    *scheduled_page.PAGES,
    *batches_page.PAGES,
    *admin_page.PAGES,
    *operations_page.PAGES,
    *GLOSSARY,
)
NAVIGATION = tuple(page for page in PAGES if page.letter)
