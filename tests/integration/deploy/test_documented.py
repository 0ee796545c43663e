"""The pages about running fileq: links and settings exist, and the snippets are the real files."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fileq.config import load
from fileq.config.show import to_listing
from tests.support.program import REPOSITORY, Program
from tests.support.servers import Server

DOCS = REPOSITORY / "docs"
PAGES = ["production.md", "deploying-handlers.md", "security.md"]
EXAMPLE = REPOSITORY / "examples" / "container"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_are_valid(page: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (DOCS / page).read_text())
    assert links or page not in PAGES
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (DOCS / path).resolve() if path else DOCS / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_named_exist(page: str) -> None:
    known = {row.key for row in to_listing(load(environ={}), "")}
    events = set(re.findall(r"^\| `([a-z_.]+)` \|", (DOCS / "events.md").read_text(), re.MULTILINE))
    sections = {key.split(".")[0] for key in known}
    words = re.findall(r"`([a-z_]+\.[a-z_.]+)[`:]", (DOCS / page).read_text())
    named = {word for word in words if word.split(".")[0] in sections and not word.endswith((".yaml", ".db"))}
    assert named
    assert [
        word for word in named - events if word not in known and not any(k.startswith(f"{word}.") for k in known)
    ] == []


def test_the_image_of_the_guide_is_that_of_the_example() -> None:
    [shown] = re.findall(r"```dockerfile\n(.*?)```", (DOCS / "deploying-handlers.md").read_text(), re.DOTALL)
    lines = (EXAMPLE / "Dockerfile").read_text().splitlines(keepends=True)
    assert shown == "".join(line for line in lines if not line.startswith("#"))


def test_the_pods_of_the_guide_are_those_of_the_example() -> None:
    page = (DOCS / "deploying-handlers.md").read_text()
    [shown] = re.findall(r"```yaml\n# kustomization.yaml\n(.*?)```", page, re.DOTALL)
    wanted = yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())
    assert yaml.safe_load(shown) == {key: wanted[key] for key in wanted if key not in ("apiVersion", "kind")}


def test_the_backup_of_the_guide_is_complete(tmp_path: Path) -> None:
    """The last transactions are still in the write-ahead log."""
    [line] = re.findall(r"^ +(python3 -c .*)$", (DOCS / "production.md").read_text(), re.MULTILINE)
    with sqlite3.connect(tmp_path / "fileq.db") as live:
        live.execute("PRAGMA journal_mode=WAL")
        live.execute("CREATE TABLE jobs (id TEXT)")
        live.execute("INSERT INTO jobs VALUES ('kept')")
        live.commit()
        assert (tmp_path / "fileq.db-wal").stat().st_size > 0
        subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=tmp_path, check=True)
    live.close()
    copy = sqlite3.connect(tmp_path / "copy.db")
    assert copy.execute("SELECT id FROM jobs").fetchall() == [("kept",)]
    copy.close()


def test_a_file_whose_job_the_broker_lost_is_found_again(tmp_path: Path, valkey: Server) -> None:
    """As the guide promises for a broker that loses data; also by a producer that keeps running."""
    inbox = tmp_path / "in"
    inbox.mkdir()
    settings = {
        "redis.addr": valkey.address,
        "producer.rescan_interval": "1s",
        "producer.settle": "50ms",
        "producer.settle_unclosed": "100ms",
    }
    with Program("producer", str(inbox), cwd=tmp_path, settings=settings) as producer:
        (inbox / "letter.txt").write_text("Dear reader")
        first = producer.wait_for("job.produced")
        valkey.client().flushall()
        again = producer.wait_for("job.produced", count=2)
        assert first["filepath"] == again["filepath"]
