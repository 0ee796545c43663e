"""The one table of pages. A new page is a module with its function, a template, and one row here."""

from __future__ import annotations

from fileq.server.console.dead_page import DeadQuery, dead
from fileq.server.console.files_page import FilePageQuery, FilesPageQuery, file, files
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
    ConsolePage(
        path="/dead",
        name="dead",
        title="Dead",
        template="dead.html",
        function=dead,
        query=DeadQuery,
        is_scan=True,
        letter="d",
    ),
    ConsolePage(
        path="/files",
        name="files",
        title="Files",
        template="files.html",
        function=files,
        query=FilesPageQuery,
        is_scan=True,
        letter="f",
    ),
    ConsolePage(
        path="/files/trace",
        name="files",
        title="File",
        template="file.html",
        function=file,
        query=FilePageQuery,
        is_scan=True,
    ),
)
NAVIGATION = tuple(page for page in PAGES if page.letter)
