"""The one table of pages. A new page is a module with its function, a template, and one row here."""

from __future__ import annotations

from fileq.server.console.jobs_page import JobsQuery, job, jobs
from fileq.server.console.overview_page import OverviewQuery, overview
from fileq.server.console.page import ConsolePage

PAGES: tuple[ConsolePage, ...] = (
    ConsolePage(
        path="",
        name="overview",
        title="Overview",
        template="overview.html",
        function=overview,
        query=OverviewQuery,
        is_scan=True,
        letter="o",
        changes_with="*",
    ),
    ConsolePage(
        path="/jobs",
        name="jobs",
        title="Jobs",
        template="jobs.html",
        function=jobs,
        query=JobsQuery,
        is_scan=True,
        letter="j",
    ),
    ConsolePage(path="/jobs/{id}", name="jobs", title="Job", template="job.html", function=job),
)
NAVIGATION = tuple(page for page in PAGES if page.letter)
