"""`fileq webhook …` and what `fileq doctor` says of webhooks, on both brokers; docs/webhooks.md."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.commands.webhooks import store_of
from fileq.config import load
from fileq.core.webhook import WEBHOOK_EVENTS, secret_key
from fileq.testing.conformance.builders import enqueue
from tests.support.command_line import CommandLine
from tests.support.doctor import Doctor
from tests.support.program import REPOSITORY
from tests.support.webhook_receiver import Receiver, Reply, open_receiver

URL = "https://example.org/hook?token=t"
GUIDE = (REPOSITORY / "docs" / "webhooks.md").read_text()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


def allow(shell: CommandLine, receiver: Receiver) -> None:
    networks = {"webhooks.allow_networks": "[127.0.0.0/8]", "webhooks.allow_ports": f"[{receiver.port}]"}
    shell.settings |= {"webhooks.allow_http": "true", **networks}


def test_a_webhook_is_added_shown_rotated_and_removed(shell: CommandLine) -> None:
    words = ("--event", "job.dead", "--event", "job.failed", "--type", "report", "--queue", "low")
    added = shell.run("webhook", "add", "alerts", URL, *words)
    secret = added.splitlines()[-1]
    assert secret_key(secret) is not None
    [listed] = shell.json("webhook", "list")["webhooks"]
    assert (listed["url"], listed["events"]) == ("https://example.org/***", ["job.dead", "job.failed"])
    assert listed["filter"] == {"type": "report", "priority": "low"}
    assert (listed["status"], listed["is_configured"], listed["previous_secret_until"]) == ("enabled", False, None)
    text = shell.run("webhook", "list")
    assert "alerts" in text
    rotated = shell.json("webhook", "rotate", "alerts")
    assert rotated["secret"] != secret
    assert shell.json("webhook", "list")["webhooks"][0]["previous_secret_until"] == rotated["previous_secret_until"]
    for output in (text, shell.run("webhook", "list"), shell.run("config", "list")):
        assert "whsec_" not in output
        assert "token=t" not in output
    assert shell.run("webhook", "deliveries", "alerts") == "no deliveries\n"
    assert shell.run("webhook", "enable", "alerts") == "webhook alerts was not disabled\n"
    shell.run("webhook", "remove", "alerts")
    assert shell.run("webhook", "list") == "no webhooks; add one with 'fileq webhook add'\n"


def test_enable_says_when_workers_know_it_and_advises_a_command_that_exists(shell: CommandLine) -> None:
    shell.run("webhook", "add", "alerts", URL, "--event", "job.dead")
    store_of(shell.broker, load().config).disable("alerts", "answered 410")
    said = shell.run("webhook", "enable", "alerts")
    assert said.startswith(
        "webhook alerts enabled; workers pick it up within 5 s, then resend missed deliveries with 'fileq dlq retry "
    )
    [advised] = re.findall("'fileq (.*?)'", said)
    assert shell.run(*advised.split()) == "no jobs match\n"


def test_what_is_wrong_is_named(shell: CommandLine) -> None:
    dead = ("--event", "job.dead")
    for words, problem in (
        (("add", "a b", URL, *dead), "must match [A-Za-z0-9._-]{1,100}"),
        (("add", "a", "http://example.org/", *dead), "is not https; use https, or set webhooks.allow_http: true"),
        (("add", "a", "https://example.org:22/", *dead), "has the port 22"),
        (("add", "a", URL, "--event", "job.started"), "job.started"),
        (("add", "a", URL, *dead, "--queue", "nope"), "has the unknown queue 'nope'; known: high, low"),
        (("add", "a", URL), "--event"),
    ):
        assert problem in shell.fail("webhook", *words, code=2), words
    shell.run("webhook", "add", "a", URL, *dead)
    assert "exists already" in shell.fail("webhook", "add", "a", URL, *dead, code=2)


def test_a_test_shows_the_answer(shell: CommandLine, receiver: Receiver) -> None:
    allow(shell, receiver)
    secret = shell.json("webhook", "add", "a", receiver.url, "--event", "job.dead")["secret"]
    receiver.answer = lambda received: Reply(200, {}, b"hello\x1b[31m")
    assert "accepted with 200" in shell.run("webhook", "test", "a")
    assert shell.json("webhook", "test", "a")["answer"] == r"hello\x1b[31m"
    assert receiver.received[0].told["type"] == "webhook.test"
    assert receiver.received[0].is_signed_by(secret)
    receiver.answer = lambda received: Reply(500)
    assert shell.run("webhook", "test", "a", code=1) == "failed: the receiver answered 500\n"
    del shell.settings["webhooks.allow_networks"]
    assert "not allowed: 127.0.0.1 is not a public address" in shell.run("webhook", "test", "a", code=1)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "[::1]", "[fd00::1]", "[::ffff:8.8.8.8]"])
def test_an_address_in_place_of_a_name_is_checked_when_it_is_added(shell: CommandLine, host: str) -> None:
    words = ("webhook", "add", "a", f"https://{host}/hook", "--event", "job.dead")
    refused = shell.fail(*words, code=2)
    assert f"{host.strip('[]')} is not a public address" in refused
    assert "webhooks.allow_networks" in refused
    assert shell.json("webhook", "list")["webhooks"] == []
    shell.settings["webhooks.allow_networks"] = "[127.0.0.0/8, 10.0.0.0/8, '::1/128', 'fd00::/8', '::ffff:0:0/96']"
    shell.run(*words)
    del shell.settings["webhooks.allow_networks"]
    shell.run("webhook", "add", "b", "https://8.8.8.8/hook", "--event", "job.dead")


def test_a_cancelled_job_has_its_delivery(shell: CommandLine) -> None:
    shell.run("webhook", "add", "a", URL, "--event", "job.cancelled")
    enqueue(shell, "one", "two", "three")
    shell.run("cancel", "one")
    [delivery] = shell.json("webhook", "deliveries", "a")["deliveries"]
    assert (delivery["event"], delivery["job_id"], delivery["status"]) == ("job.cancelled", "one", "pending")
    assert json.loads(shell.run("show", delivery["id"], "--json"))["parent_id"] == "one"
    shown = shell.run("webhook", "deliveries", "a")
    assert "job.cancelled" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert f" {delivery['created_at'][:19].replace('T', ' ')}Z " in shown, "times as in all tables"
    shell.run("cancel", delivery["id"])
    assert len(shell.json("webhook", "deliveries", "a")["deliveries"]) == 1, "no delivery is about a delivery"
    shell.run("cancel", "--all", "--yes")
    found = {one["job_id"]: one["status"] for one in shell.json("webhook", "deliveries", "a")["deliveries"]}
    assert found == {"one": "cancelled", "two": "pending", "three": "pending"}
    assert shell.json("cancel", "--all", "--yes")["count"] == 0, "deliveries that wait already are left too"
    shell.run("cancel", "--all", "--yes", "--type", "fileq.webhook")
    found = {one["job_id"]: one["status"] for one in shell.json("webhook", "deliveries", "a")["deliveries"]}
    assert set(found.values()) == {"cancelled"}


def test_doctor_checks_the_definitions(shell: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {key.replace(".", "__"): value for key, value in shell.settings.items()}
    doctor = Doctor(capsys)
    assert doctor(**settings).find("webhooks") == []
    shell.run("webhook", "add", "good", URL, "--event", "job.dead")
    assert doctor(**settings).status("webhooks") == "ok"
    shell.broker.put_document("webhooks", "bad", b"[]")
    private = '[{name: near, url: "https://10.1.2.3/x", events: [job.dead], secret: whsec_%s}]' % ("A" * 32)
    near = doctor(**settings, webhooks__endpoints=private).find("webhooks")
    assert any("the url of webhook 'near' leads to" in one["detail"] for one in near)
    assert "'bad' can't be read" in doctor(**settings).find("webhooks")[0]["detail"]
    shell.run("webhook", "remove", "bad")
    missing = "[{name: c, url: 'https://example.org', events: [job.dead], secret_file: /nonexistent}]"
    found = doctor(**settings, webhooks__endpoints=missing).find("webhooks")
    assert "secret_file '/nonexistent' of webhook 'c' can't be read" in found[0]["detail"]


# the guide


def block(name: str) -> str:
    found = re.search(rf"```\w+\n# {re.escape(name)}\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_receiver_of_the_guide_accepts_what_is_sent_and_nothing_else(
    shell: CommandLine, receiver: Receiver
) -> None:
    guide: dict[str, object] = {}
    exec(compile(block("receiver.py"), "receiver.py", "exec"), guide)
    is_authentic = guide["is_authentic"]
    assert callable(is_authentic)
    allow(shell, receiver)
    secret = shell.json("webhook", "add", "a", receiver.url, "--event", "job.dead")["secret"]
    shell.run("webhook", "test", "a")
    new = shell.json("webhook", "rotate", "a")["secret"]
    shell.run("webhook", "test", "a")
    first, second = receiver.received
    assert is_authentic(secret, first.headers, first.body)
    assert is_authentic(secret, second.headers, second.body), "two signatures during a rotation"
    assert is_authentic(new, second.headers, second.body)
    assert not is_authentic(new, first.headers, first.body)
    assert not is_authentic(secret, first.headers, first.body + b" ")
    late = {**first.headers, "webhook-timestamp": str(int(time.time()) - 3600)}
    assert not is_authentic(secret, late, first.body)


def test_the_configuration_of_the_guide_is_valid(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("config.yaml"))
    config = load(str(tmp_path / "config.yaml"), []).config
    assert config.webhooks.endpoints[0].webhook.filter.match == "**/*.pdf"
    assert all(f"| `{event}` |" in GUIDE for event in WEBHOOK_EVENTS)
