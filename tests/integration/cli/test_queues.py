"""`fileq admin pause|resume`, on both brokers."""

from __future__ import annotations

import re

import pytest

from fileq.cli import main
from fileq.commands.action_log import ActionLog
from fileq.commands.audit_entries import audit_page
from fileq.server.routes import ROUTES
from fileq.testing.conformance.builders import dead, enqueue
from tests.support.command_line import CommandLine


def test_a_queue_is_paused_and_resumed_and_repeating_changes_nothing(shell: CommandLine) -> None:
    enqueue(shell, "a")
    expected = {"queue": "low", "is_paused": True, "has_changed": True, "waiting": 1, "reason": "", "old_reason": ""}
    assert shell.json("admin", "pause", "low") == expected
    assert shell.json("pause", "low") == {**expected, "has_changed": False}
    assert shell.broker.census().paused == {"low"}
    assert shell.run("resume", "low") == "low resumed, 1 job pending\n"
    assert shell.run("resume", "low") == "low was not paused, 1 job pending\n"
    assert shell.json("resume", "low") == {**expected, "is_paused": False, "has_changed": False}
    assert shell.broker.census().paused == frozenset()


def test_a_new_reason_of_a_paused_queue_is_named_with_the_one_before(shell: CommandLine) -> None:
    words = ("pause", "low", "--reason")
    assert shell.run(*words, "disk").startswith("low paused, ")
    assert shell.run(*words, "disk").startswith("low is already paused, 0 jobs pending; running jobs finish")
    replaced = "low is already paused, 0 jobs pending; the reason is now: fan (before: disk)\n"
    assert shell.run(*words, "fan") == replaced


def test_the_audit_has_what_a_command_changed_and_the_log_has_its_jobs(shell: CommandLine) -> None:
    shell.run("pause", "low", "--reason", " the disk ")
    shell.run("pause", "low")
    assert re.search(r"^low +0 +- +paused for .* by .*, command line: the disk$", shell.run("stats"), re.MULTILINE)
    enqueue(shell, "a")
    shell.run("cancel", "a")
    shell.run("resume", "low")
    dead(shell, "b")
    dead(shell, "c")
    shell.run("dlq", "retry", "--all", "--queue", "low", "--dry-run")
    shell.run("dlq", "retry", "--all", "--queue", "low")
    shell.run("schedule", "add", "nightly", "@daily", "--type", "report")
    shell.run("schedule", "pause", "nightly")
    shell.run("batch", "cancel", shell.json("batch", "create", "--name", "b")["id"])
    entries = audit_page(shell.broker, 10)[0][::-1]
    batch = entries[-1].target.split("/")[2]
    assert [(one.action, one.target, one.count, one.job_id, one.detail) for one in entries] == [
        ("pause_queue", "/queues/low/pause", 1, "", ""),
        ("cancel_job", "/jobs/a", 1, "a", ""),
        ("resume_queue", "/queues/low/resume", 1, "", ""),
        ("act_on_jobs", "/jobs/actions", 2, "", "action: retry, queue: low"),
        ("put_schedule", "/schedules/nightly", 1, "", ""),
        ("pause_one_schedule", "/schedules/nightly/pause", 1, "", ""),
        ("cancel_one_batch", f"/batches/{batch}/cancel", 1, "", ""),
    ]
    assert {entry.action for entry in entries} < {route.name for route in ROUTES}, "the console knows their words"
    assert [(one.field, one.old, one.new) for one in entries[2].changes] == [
        ("paused", "yes", "no"),
        ("reason", "the disk", None),
    ]
    assert all(one.who.endswith(", command line") and one.result == 200 for one in entries)
    whole, retried, cancelled = ActionLog(shell.broker, lambda: 0).all()
    assert (cancelled.action, cancelled.ids, {*retried.ids}) == ("cancel", ("a",), {"b", "c"})
    assert retried.id == entries[3].action_id
    assert whole.conditions == {"batch": batch}


def test_a_batch_that_is_waited_for_quietly_prints_its_id_alone(shell: CommandLine) -> None:
    empty = shell.directory / "none.json"
    empty.write_text("[]")
    words = ("batch", "create", "--name", "b", "--manifest", str(empty), "--wait")
    assert len(shell.run(*words).splitlines()) == 2
    assert re.fullmatch(r"b-\w+\n", shell.run(*words, "-q"))


def test_the_list_of_keys_shows_their_restrictions(shell: CommandLine) -> None:
    only = ("--allow-type", "ocr", "--allow-type", "scan", "--path-prefix", "/srv/in")
    shell.run("keys", "create", "narrow", "--scope", "enqueue", *only)
    shell.run("keys", "create", "wide", "--scope", "read", "--expires", "1d")
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\dZ  never$", shell.run("keys", "list"), re.M)
    shell.run("keys", "revoke", "wide")
    shell.run("keys", "create", "wide", "--scope", "read")
    rows = [re.split(" {2,}", line)[1:5] for line in shell.run("keys", "list").splitlines()[1:]]
    assert sorted(rows) == [
        ["narrow", "enqueue", "type ocr, type scan, files below /srv/in", "never"],
        ["wide", "read", "-", "never"],
    ]


def test_several_keys_are_revoked_and_an_unknown_one_is_named(shell: CommandLine) -> None:
    scanner, shop = (shell.json("keys", "create", name, "--scope", "read")["id"] for name in ("scanner", "shop"))
    report = shell.json("keys", "revoke", "scanner", "scaner", shop, code=1)
    unknown = report["results"].pop(1)
    assert report == {
        "count": 2,
        "results": [
            {"id": scanner, "name": "scanner", "result": "revoked", "reason": ""},
            {"id": shop, "name": "shop", "result": "revoked", "reason": ""},
        ],
    }
    assert (unknown["id"], unknown["result"]) == ("scaner", "unknown")
    assert unknown["reason"].startswith("no key has the id or name 'scaner'; ")
    id = shell.json("keys", "create", "shop", "--scope", "read")["id"]
    assert shell.run("keys", "revoke", "shop").splitlines() == [
        f"{id}  shop",
        "1 key revoked; servers reject them within 5 s",
    ]
    assert "no keys; create one" in shell.run("keys", "list")


def test_the_audit_has_what_commands_defined_and_never_a_secret(shell: CommandLine) -> None:
    for cron in ("@daily", "@hourly", "@hourly"):
        shell.run("schedule", "add", "nightly", cron, "--type", "report")
    job_id = shell.json("schedule", "run", "nightly")["id"]
    shell.run("schedule", "remove", "nightly")
    key = shell.json("keys", "create", "scanner", "--scope", "read")
    shell.run("keys", "revoke", "scanner")
    url = "https://example.org/x?token=hidden"
    secrets = [key["key"], shell.json("webhook", "add", "told", url, "--event", "job.dead")["secret"]]
    secrets.append(shell.json("webhook", "rotate", "told")["secret"])
    shell.run("webhook", "enable", "told")
    shell.run("webhook", "remove", "told")
    entries = audit_page(shell.broker, 20)[0][::-1]
    assert [(one.action, one.target) for one in entries] == [
        ("put_schedule", "/schedules/nightly"),
        ("put_schedule", "/schedules/nightly"),
        ("run_schedule", "/schedules/nightly/run"),
        ("delete_schedule", "/schedules/nightly"),
        ("create_key", "/keys"),
        ("revoke_key", f"/keys/{key['id']}"),
        ("add_webhook", "/webhooks"),
        ("rotate_webhook", "/webhooks/told/rotate"),
        ("remove_webhook", "/webhooks/told"),
    ]
    assert {entry.action for entry in entries} < {route.name for route in ROUTES}
    said = [{one.field: (one.old, one.new) for one in entry.changes} for entry in entries]
    assert said[1] == {"cron": ("@daily", "@hourly")}
    assert (said[3]["cron"], said[5]["name"]) == (("@hourly", None), ("scanner", None))
    assert said[4] == {"id": (None, key["id"]), "name": (None, "scanner"), "scopes": (None, "read")}
    assert (said[6]["url"], said[7]) == ((None, "https://example.org/***"), {"secret": (None, "replaced")})
    assert [one for one in (*secrets, "hidden") if one in str(entries)] == []
    [run] = ActionLog(shell.broker, lambda: 0).all()
    assert (run.action, run.ids, run.by) == ("run", (job_id,), entries[2].who)
    assert entries[2].job_id == job_id


def test_several_queues_are_paused_and_resumed_at_once(shell: CommandLine) -> None:
    enqueue(shell, "a")
    assert shell.run("pause", "high", "low") == (
        "high paused, 0 jobs pending; running jobs finish, new ones stay pending\n"
        "low paused, 1 job pending; running jobs finish, new ones stay pending\n"
    )
    assert shell.broker.census().paused == {"high", "low"}
    resumed = shell.json("resume", "low", "high")["queues"]
    assert [(result["queue"], result["is_paused"]) for result in resumed] == [("low", False), ("high", False)]
    assert shell.broker.census().paused == frozenset()


def test_an_unknown_queue_among_several_pauses_none(shell: CommandLine) -> None:
    assert "no queue is named 'nope'" in shell.fail("pause", "high", "nope", code=2)
    assert shell.broker.census().paused == frozenset()


def test_quiet_prints_nothing_but_errors(shell: CommandLine) -> None:
    assert shell.run("pause", "low", "-q") == ""
    assert shell.run("-q", "resume", "low") == ""
    assert shell.json("pause", "low", "--quiet")["is_paused"] is True
    assert "no queue is named 'nope'" in shell.fail("pause", "nope", "-q", code=2)
    shell.run("resume", "low", "-q")
    dead(shell, "a")
    assert shell.run("dlq", "retry", "a", "-q") == ""
    assert shell.run("dlq", "list", "-q") == "no dead jobs\n", "a question is answered"


def test_quiet_prints_a_new_secret_alone(shell: CommandLine) -> None:
    made = shell.run("keys", "create", "a", "--scope", "read", "-q")
    assert made.startswith("fq_")
    added = shell.run("webhook", "add", "w", "https://example.org/x", "--event", "job.dead", "-q")
    rotated = shell.run("webhook", "rotate", "w", "-q")
    assert added.startswith("whsec_")
    assert rotated.startswith("whsec_")
    assert [len(text.split()) for text in (made, added, rotated)] == [1, 1, 1]
    assert shell.run("breaker", "reset", "-q") == ""


def test_quiet_reports_a_failure_on_stderr(shell: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "absent", "-q", *shell.sets]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "absent: unknown" in shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "nope"), "no queue is named 'nope'; the queues are high, low"),
        (("resume", "dead_letter"), "no queue is named 'dead_letter'"),
        (("pause",), "QUEUE is missing"),
        (("worker", "--count", "1025"), "fileq: --count is '1025'; it must be"),
        (("worker", "--app-dir", "absent"), "--app-dir is 'absent'; it must be an existing directory"),
        (("batch", "create", "--wait"), "the batch stays open; pass files or --manifest"),
        (("batch", "create", "--wait", "--open", "a"), "the batch stays open; omit --open"),
    ],
)
def test_a_wrong_argument_is_one_line(shell: CommandLine, words: tuple[str, ...], said: str) -> None:
    assert said in shell.fail(*words, code=2)
    assert shell.broker.census().paused == frozenset()
