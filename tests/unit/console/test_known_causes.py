"""What pages say after somebody has acted: known causes alarm nobody, and an action leads to its jobs."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Entry
from fileq.commands.acknowledgements import acknowledge_group
from fileq.commands.action_log import ActionLog
from fileq.commands.admin.pauses import set_paused
from fileq.core.job import Claim, wall_clock_ms
from fileq.core.settlement import Settlement
from fileq.testing.conformance.builders import a_job
from tests.support.console_jobs import HOSTILE, QUEUES, dies, end, held, in_order, pages_with_worker, shown, words
from tests.support.console_pages import ConsolePages

CAUSE, OTHER = "0123456789ab", "ba9876543210"


def of_cause(fingerprint: str):  # type: ignore[no-untyped-def]
    def settled(claim: Claim) -> Settlement:
        return replace(dies(claim), fingerprint=fingerprint)

    return settled


def acknowledge(pages: ConsolePages, fingerprint: str, later_ms: int = 1) -> None:
    """A little later than the deaths: they may share a millisecond."""
    acknowledge_group(pages.broker, fingerprint, f"known {HOSTILE}", "olga", wall_clock_ms() + later_ms)


def test_dead_jobs_whose_causes_are_all_known_do_not_alarm() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), of_cause(CAUSE))
    end(pages, a_job("b"), of_cause(OTHER))
    acknowledge(pages, CAUSE)
    [overview] = shown(pages, "")
    assert 'class="card figure first bad"' in overview
    assert "1 acknowledged, " in overview
    assert "all known" not in overview
    acknowledge(pages, OTHER)
    overview, dead, job = shown(pages, "", "/dead", "/jobs/a")
    assert 'class="card figure first"' in overview
    assert "all acknowledged , see notes below" in words(overview)
    assert in_order(dead, "Alerts are not silenced", "or under Webhooks")
    assert 'data-body="{&#34;cause&#34;:' in dead, "the audit gets the cause in words"
    assert 'class="button main" data-action="POST /jobs/a/retry"' not in job
    acknowledge(pages, OTHER, later_ms=-60_000)
    [overview] = shown(pages, "")
    assert "died since olga acknowledged it: known" in words(overview)
    assert 'class="card figure first bad"' in overview, "it came back"


def test_a_batch_says_which_causes_are_known_and_leads_to_them() -> None:
    pages = pages_with_worker()
    pages.broker.create_batch(NewBatch("nightly", "nightly", allow_failures=True))
    end(pages, replace(a_job("a"), batch_id="nightly"), of_cause(CAUSE), joins=True)
    acknowledge(pages, CAUSE)
    _, batch, causes = shown(pages, "", "/batches/nightly", "/dead?batch=nightly")
    assert "acknowledged by olga: known &lt;script&gt;" in words(batch)
    assert 'href="/dashboard/dead?batch=nightly"' in batch
    assert 'class="button main" data-action="POST /batches' not in batch, "nothing urges to retry"
    assert "olga acknowledged this" in words(causes)


def test_an_action_is_told_on_the_lists_where_it_belongs() -> None:
    pages = pages_with_worker()
    for name, cause in (("a", CAUSE), ("b", OTHER), ("c", CAUSE)):
        end(pages, a_job(name), of_cause(cause))
    log = ActionLog(pages.broker, wall_clock_ms)
    told = "jobs were retried by olga"
    id = log.add(JobAction.RETRY, "olga", ["x", "y"], conditions={"status": "dead", "fingerprint": CAUSE})
    own = [
        f"/dead?fingerprint={CAUSE}",
        f"/jobs?status=dead&fingerprint={CAUSE}",
        "/dead",
        "/jobs",
        "/jobs?status=dead",
    ]
    probed = f"/dead?fingerprint={CAUSE}&probe=a"  # it has ended
    others = [f"/dead?fingerprint={OTHER}", "/jobs?q=b", "/dead?match=*.pdf"]
    assert [told in text for text in shown(pages, *own, probed, *others)] == [True] * 6 + [False] * 3
    [listed] = shown(pages, "/admin/operations")
    assert in_order(
        listed,
        "Recent bulk actions",
        "Actions on one job",
        "2 jobs retried",
        f"cause: {CAUSE}",
        "run in the background",
    )
    assert "No operations" not in listed
    pages.broker.remove_document("job-actions", id)
    log.add(JobAction.RETRY, f"key-{len(pages.keys.load())}", ["x", "y"])  # the one that shown() makes next
    assert "jobs were retried by key-" in shown(pages, f"/dead?fingerprint={OTHER}")[0], "where its jobs were chosen"
    assert "jobs were retried by key-" not in shown(pages, f"/dead?fingerprint={OTHER}")[0], "to nobody else"


def test_an_action_names_the_cause_of_its_jobs_unless_paths_are_hidden() -> None:
    for files, is_shown in (("preview", True), ("none", False)):
        pages = pages_with_worker(server={"files": files})
        log = ActionLog(pages.broker, wall_clock_ms)
        chosen = {"status": "dead", "fingerprint": CAUSE}
        id = log.add(JobAction.RETRY, "olga", ["x", "y"], conditions=chosen, cause=f"{HOSTILE} in /in/a.pdf")
        for text in shown(pages, "/admin/operations", f"/admin/operations/{id}"):
            assert f'href="/dashboard/dead?fingerprint={CAUSE}"' in text
            assert ("cause: &lt;script&gt;" in text, "/in/a.pdf" in text) == (is_shown, is_shown)


def test_a_list_says_how_many_it_leaves_out_and_one_group_has_one_set_of_buttons() -> None:
    pages = pages_with_worker()
    for number in range(21):
        end(pages, a_job(f"a{number}"), of_cause(CAUSE))
    dead, group, kinds = shown(pages, "/dead", f"/dead?fingerprint={CAUSE}", "/dead?by=kind")
    assert "The newest 20 of 21 jobs" in words(dead)
    assert "The newest 20 of 21 jobs in this group" in words(group)
    assert dead.count(">Retry all 21</button>") == dead.count(">Delete all 21</button>") == 1
    assert "Grouped by identical error" in dead
    assert "can have several causes" in kinds
    end(pages, a_job("b"), of_cause(OTHER))
    dead, overview = shown(pages, "/dead", "")
    assert dead.count(">Retry all 22</button>") == 1, "that of the whole list"
    assert ">ValueError: page 3</a>" in dead, "one job: its error, as on the overview"
    assert ">ValueError: page 3</a>" in overview


def test_what_is_held_back_and_what_waits_is_told_for_each_queue() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), held)
    overview, listed = shown(pages, "", "/jobs")
    row = overview.split("Pending jobs by queue")[1]
    assert "low 0 and 1 deferred" in words(row)
    assert '<span class="state deferred">deferred</span>' in listed
    pages.broker.create_batch(NewBatch("nightly", "nightly"))
    pages.broker.enqueue([Entry(replace(a_job("m"), batch_id="nightly"), "high", joins=True)])
    pages.broker.enqueue([Entry(a_job(name), "high") for name in "xyz"])
    set_paused(pages.broker, "high", QUEUES, paused=True, by="olga")
    [batch] = shown(pages, "/batches/nightly")
    assert "Its 4 pending jobs start as slots become free. 3 of them are not in this batch." in batch
