"""@fileq.before_enqueue for jobs that come over HTTP: the server runs the functions of producer.imports."""

from __future__ import annotations

from pathlib import Path

import pytest

import fileq
from tests.support.program import Program, run

KEY = "an-admin-key-from-outside"
GATE = """
import threading

import fileq


@fileq.before_enqueue
def gate(job):
    assert threading.current_thread().name != "server", "the thread of the event loop"
    if job.payload_value == "veto":
        return None
    if job.payload_value == "refuse":
        raise fileq.JobError("this payload is refused")
    if job.payload_value == "break":
        raise KeyError("a defect of the function")
    return job.but(priority="high")
"""


def test_a_server_shows_the_jobs_of_its_clients_to_before_enqueue(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "gate_over_http.py").write_text(GATE)
    settings = {"server.port": 0, "producer.imports": "[gate_over_http]"}
    arguments = ("serve", "--app-dir", str(modules))
    with Program(*arguments, cwd=tmp_path, settings=settings, variables={"API_KEY": KEY}) as server:
        url = server.wait_for("server.opened")["url"]
        with fileq.Client(url, key=KEY) as client:
            assert client.enqueue("t", "keep").status().queue == "high"
            assert client.enqueue("t", "veto").fate == "vetoed"
            with pytest.raises(fileq.ConfigError, match="this payload is refused"):
                client.enqueue("t", "refuse")
            with pytest.raises(fileq.BrokerError, match=r"see the log of the server for request (\S+)$") as broken:
                client.enqueue("t", "break")
            logged = server.wait_for("request.failed")
            assert str(broken.value).endswith(str(logged["request_id"]))
            assert "a defect of the function" in str(logged["error"])
            many = client.enqueue_many([fileq.Call("t", "keep"), fileq.Call("t", "veto")])
            assert [handle.fate for handle in many] == ["enqueued", "vetoed"]
            with client.batch() as batch:
                members = batch.add_many([fileq.Call("t", "keep"), fileq.Call("t", "veto")])
            assert [handle.fate for handle in members] == ["enqueued", "vetoed"]
            assert (batch.status().total, client.size("high"), client.size("low")) == (1, 3, 0)


def test_a_server_does_not_start_with_a_module_that_it_cannot_import(tmp_path: Path) -> None:
    ended = run("serve", cwd=tmp_path, settings={"server.port": 0, "producer.imports": "[no_such_module]"})
    assert ended.returncode == 2
    assert "producer.imports[0]" in ended.stderr
