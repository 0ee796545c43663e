"""examples/container: its image builds on ours, and its handler runs in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Image, Pod
from tests.support.manifests import built, container_of
from tests.support.program import REPOSITORY

# The first of them builds the image, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

EXAMPLE = REPOSITORY / "examples" / "container"


@pytest.fixture(scope="module")
def documents(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    directory = tmp_path_factory.mktemp("documents")
    documents = Image(EXAMPLE / "Dockerfile", context=EXAMPLE, directory=directory, base=image)
    yield documents.build()
    documents.remove()


def test_its_handler_runs_in_its_image(documents: Image, pod: Pod, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "two.yaml").write_text("a: 1\n---\nb: 2\n")
    (inbox / "none.yml").write_text("a: [1, 2\n")
    container = pod.start(
        documents,
        ["all", "--once"],
        env={"FILEQ_PRODUCER_SETTLE_UNCLOSED": "200ms"},
        volumes=[("/data", inbox, True)],
        tmpfs=["/tmp", "/var/lib/fileq"],
    )
    assert json.loads(container.wait_for("documents.checked"))["documents"] == 2
    assert "not YAML" in container.wait_for('"job.dead"')
    assert container.wait() == 3  # one is dead


def test_its_image_keeps_the_user_the_entrypoint_and_the_health_check(documents: Image, image: Image) -> None:
    assert documents.user == image.user
    assert documents.entrypoint == image.entrypoint
    assert documents.healthcheck == image.healthcheck
    assert documents.env["FILEQ_IMPORTS"] == "documents"


def test_its_pods_run_its_image() -> None:
    manifests = built(EXAMPLE)
    images = {container_of(workload)["image"] for workload in manifests.fileqs()}
    assert images == {"registry.example.com/documents:1"}
    assert {manifest["metadata"]["namespace"] for manifest in manifests.all} == {"documents"}
    assert manifests.get("Deployment", "fileq-worker")["spec"]["replicas"] == 3
