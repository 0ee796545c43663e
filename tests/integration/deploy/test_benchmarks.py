"""`make bench` in its quick form, for fileq only; the proxy that adds latency."""

from __future__ import annotations

import importlib
import json
import pkgutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import benchmarks.measures
import benchmarks.systems
from benchmarks.runs import slow_network

REPOSITORY = Path(__file__).parents[3]


def test_the_quick_form_measures_the_installed_program(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    words = ["drain", "pickup", "fileq thread 16", "--quick", "--rounds", "1", "--json", str(file)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(file.read_text())["figures"]["fileq thread 16"]
    measured = {key for key, values in figures.items() if len(values) == 1 and values[0] > 0}
    assert measured >= {"drain_1", "cpu_total", "pickup_p50", "pickup_p99"}
    assert "| fileq thread 16 |" in ended.stdout


def test_every_measure_that_is_run_by_hand_can_still_be_imported() -> None:
    """They use parts of fileq that the quick form does not."""
    packages = (benchmarks, benchmarks.measures, benchmarks.systems)
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def test_the_proxy_delays_replies_and_keeps_their_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, slow_network(listener.getsockname()[1], 20.0) as port:
        listener.settimeout(10)
        listener.accept()[0].close()  # of the check whether the proxy listens
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            accepted, _ = listener.accept()
            with accepted:
                client.sendall(b"ping")
                assert accepted.recv(4) == b"ping"
                sent_s = time.monotonic()
                pieces = [b"%05d" % number for number in range(1000)]
                threading.Thread(target=lambda: [accepted.sendall(piece) for piece in pieces]).start()
                received = client.recv(1)
                assert time.monotonic() - sent_s >= 0.02
                while len(received) < 5000:
                    received += client.recv(5000)
    assert received == b"".join(pieces)
