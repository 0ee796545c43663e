"""Who did what, and who may: the audit in exact words, narrowed to a person; keys for people, with their address."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from fileq.brokers.catalog import entry_name
from fileq.commands.api_keys import KeyOptions
from fileq.commands.audit_entries import AUDIT, AuditChange, AuditEntry
from fileq.core.api_key import Scope
from fileq.core.job import stamp, wall_clock_ms
from fileq.server.console.admin_views import in_words
from tests.support.console_jobs import in_order
from tests.support.console_pages import ConsolePages


def test_an_entry_of_the_audit_says_exactly_what_was_done() -> None:
    def words(action: str, target: str, result: int = 200, **more: Any) -> tuple[str, str, str, int | None]:
        found = in_words(AuditEntry("2026-05-01T12:00:00.000Z", "me", "id", action, target, 1, result, "r", **more))
        return found.action, found.target, found.view, found.jobs

    new, other = (AuditChange("cron", old, "@daily") for old in (None, "@hourly"))
    page = "/dashboard/scheduled/edit/a"
    assert words("put_schedule", "/schedules/a", 201, changes=(new,)) == ("add a schedule", "a", page, None)
    assert words("put_schedule", "/schedules/a", changes=(other,))[0] == "change a schedule"
    assert words("put_schedule", "/schedules/a", changes=())[0] == "change a schedule", "saved as it was"
    run = words("run_schedule", "/schedules/a/run", job_id="x", detail="schedule: a")
    assert run == ("run a schedule now", "a job of a", "/dashboard/jobs/x", 1)
    file = words("upload_file", "/uploads/a b.pdf", path="/in/a b.pdf")
    assert file == ("upload a file", "/in/a b.pdf", "/dashboard/files/trace?path=%2Fin%2Fa+b.pdf", None)
    key = words("create_key", "/keys", 201, changes=(AuditChange("name", None, "anna"),))
    assert key == ("create a key", "anna", "/dashboard/admin", None)
    state = AuditChange("state", "running", "cancellation requested")
    assert words("cancel_job", "/jobs/x", job_id="x", changes=(state,))[3] == 1
    group, page = "/dead/groups/0123/acknowledgement", "/dashboard/dead?fingerprint=0123"
    known = words("put_acknowledgement", group, detail="ValueError: page … is empty")
    assert known == ("acknowledge a cause again", "ValueError: page … is empty", page, None)
    assert words("remove_acknowledgement", group)[1:3] == ("group 0123", page), "its cause is not known"
    assert words("name_session", "/whoami/name")[:3] == ("set display name", "own session", "/dashboard/admin")


def test_the_audit_is_narrowed_to_a_person_and_an_action() -> None:
    pages = ConsolePages()
    for number, (who, action) in enumerate(
        (("anna <b>", "retry_job"), ("anna <b>", "cancel_job"), ("bob", "retry_job"))
    ):
        now_ms, target = wall_clock_ms(), f"/jobs/{number}"
        at = stamp(now_ms) or ""
        entry = AuditEntry(at, who, "me", action, target, 1, 200, f"request-{number}", job_id=f"job-{number}")
        AUDIT.add(pages.broker, entry_name(now_ms), [entry])
    own = "/admin/audit?who=anna+%3Cb%3E"
    found = pages.show(["/admin/audit", own, f"{own}&action=retry_job", "/admin/audit?who=x"])
    everything, anna, both, none = (text for _, text in found)

    def jobs(text: str) -> list[str]:
        return sorted(set(re.findall("/dashboard/jobs/(job-[0-9])", text)))

    assert [jobs(text) for text in (everything, anna, both)] == [
        ["job-0", "job-1", "job-2"],
        ["job-0", "job-1"],
        ["job-0"],
    ]
    assert 'href="/dashboard/admin/audit?who=anna+%3Cb%3E"' in everything
    assert "anna <b>" not in everything + anna
    assert in_order(none, "No entries match.", "All entries")


def test_the_own_entries_are_those_of_the_session_under_each_of_its_names() -> None:
    pages = ConsolePages()
    session = pages.keys.create(KeyOptions("root (one-time link)", (Scope.ADMIN,), is_login=True))
    for number, (who, id) in enumerate((("root", session.id), ("Nina", session.id), ("Nina", "other"))):
        made = AuditEntry(f"2026-05-01T12:00:0{number}Z", who, id, "retry_job", f"/jobs/{number}", 1, 200, "r")
        made.log.add(pages.broker, entry_name(wall_clock_ms()), [replace(made, job_id=f"job-{number}")])
    [(_, unnamed)] = pages.show_with(session.key, ["/admin/audit?mine=true"])
    assert [f"job-{number}" in unnamed for number in range(3)] == [True, True, False]
    assert "done by: this session" in unnamed
    assert in_order(unnamed, "Set your name</a>", "signed “root (one-time link)”", 'id="confirm-name"')
    assert pages.keys.name_session(session.id, "root") == "root (one-time link)", "who is called so says it too"
    [(_, named)] = pages.show_with(session.key, ["/admin/audit"])
    assert in_order(named, "Change your name</a>", "signed “root”")
    assert 'id="confirm-name"' not in named
    key = pages.keys.create(KeyOptions("nina", (Scope.ADMIN,)))
    [(_, text)] = pages.show_with(key.key, ["/admin/audit?mine=true"])
    assert in_order(text, "done by: the key nina", "No entries match.")


def test_a_person_who_came_by_link_can_make_a_key_with_one_click_and_send_the_address() -> None:
    pages = ConsolePages(server={"base_path": "/jobs"})
    session = pages.keys.create(KeyOptions("root (one-time link)", (Scope.ADMIN,), is_login=True))
    [(_, before)] = pages.show_with(session.key, ["/admin"])
    assert re.search(r'data-action="POST /keys" data-body="[^"]*root&#34;,[^"]*admin[^"]*" data-shows="key"', before)
    assert 'data-copy="http://127.0.0.1/jobs/login"' in before
    pages.keys.create(KeyOptions("root", (Scope.READ,)))
    [(_, after)] = pages.show_with(session.key, ["/admin"])
    assert "No key has the scope" in after
    assert "root 2&#34;" in after, "another name, and the same button"
    pages.keys.create(KeyOptions("root 2", (Scope.ADMIN,)))
    assert "Create my admin key" not in pages.show_with(session.key, ["/admin"])[0][1]
