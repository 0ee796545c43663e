"""Pods as the manifests describe them, and Compose's services, run here: files, users, arguments and environment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import require
from tests.support.container import Container, Image, Pod
from tests.support.manifests import (
    K8S,
    Manifest,
    Manifests,
    built,
    compose,
    container_of,
    environment_of,
    mounts_of,
    pod_of,
)
from tests.support.program import REPOSITORY
from tests.support.waiting import wait_until

# The first of them builds the image, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

PASSWORD = "correct horse"
SECRETS = {"fileq-redis": {"redis-password": PASSWORD}}


class Volumes:
    """The volumes of these manifests, as directories; claims are shared by name."""

    def __init__(self, directory: Path, manifests: Manifests) -> None:
        self.directory = directory
        self._manifests = manifests

    def claim(self, name: str, part: str = "") -> Path:
        path = self.directory / "claims" / name / part
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def of(self, workload: Manifest) -> list[tuple[str, Path, bool]]:
        mounts = mounts_of(workload)
        return [(p, self._source(m), m.get("readOnly", False)) for p, m in mounts.items() if not _is_empty(m)]

    def _source(self, mount: Manifest) -> Path:
        volume = mount["volume"] or {"persistentVolumeClaim": {"claimName": mount["name"]}}  # of a template
        if "persistentVolumeClaim" in volume:
            return self.claim(volume["persistentVolumeClaim"]["claimName"], mount.get("subPath", ""))
        directory = self.directory / "files" / volume["name"] / mount["mountPath"].strip("/").replace("/", "-")
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in self._manifests.files_of(volume, SECRETS).items():
            (directory / name).write_text(text)
        return directory


def _is_empty(mount: Manifest) -> bool:
    return "emptyDir" in (mount["volume"] or {})


def start(pod: Pod, image: Image, workload: Manifest, volumes: Volumes, **env: str) -> Container:
    container = container_of(workload)
    return pod.start(
        image,
        container.get("args", []),
        command=container.get("command", []),
        env=environment_of(workload) | {"FILEQ_PRODUCER_SETTLE_UNCLOSED": "200ms"} | env,
        volumes=volumes.of(workload),
        tmpfs=[path for path, mount in mounts_of(workload).items() if _is_empty(mount)],
        hosts=["redis"],
        user=pod_of(workload)["securityContext"]["runAsUser"],
    )


def completed(container: Container) -> dict[str, Any]:
    done: dict[str, Any] = json.loads(container.wait_for('"job.completed"'))
    return done


@pytest.fixture
def redis_overlay() -> Manifests:
    return built(K8S / "overlays" / "redis")


@pytest.fixture(scope="module")
def redis_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """This machine's Redis, executable for all users, in the working directory of the official image."""
    directory = tmp_path_factory.mktemp("redis")
    for name in ("redis-server", "redis-cli"):
        shutil.copy(require("redis-server", shutil.which(name)), directory / name)
        (directory / name).chmod(0o755)
    dockerfile = directory / "Dockerfile"
    dockerfile.write_text("FROM debian:bookworm-slim\nCOPY redis-server redis-cli /usr/local/bin/\nWORKDIR /data\n")
    image = Image(dockerfile, context=directory, directory=directory)
    yield image.build()
    image.remove()


def probe(running: Container, workload: Manifest, name: str) -> str:
    """The status that the kubelet would get."""
    container = container_of(workload)
    asked = container[name]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    code = (
        f"import http.client as h; c = h.HTTPConnection('127.0.0.1', {ports[asked['port']]}, timeout=5); "
        f"c.request('GET', {asked['path']!r}); print(c.getresponse().status)"
    )
    return running.execute(["python", "-c", code]).stdout.strip()


def ask(redis: Container, *words: str) -> str:
    """Runs a command on the Redis of the pod, with the password that its readiness probe uses."""
    line = 'REDISCLI_AUTH="$(cat /run/secrets/fileq/redis-password)" exec redis-cli "$@"'
    return redis.execute(["sh", "-c", line, "sh", *words]).stdout.strip()


def test_the_redis_overlay_processes_a_file(
    image: Image, redis_image: Image, pod: Pod, redis_overlay: Manifests, tmp_path: Path
) -> None:
    volumes = Volumes(tmp_path, redis_overlay)
    stateful = redis_overlay.get("StatefulSet", "redis")
    redis = start(pod, redis_image, stateful, volumes)
    ready = container_of(stateful)["readinessProbe"]["exec"]["command"]
    wait_until(lambda: redis.execute(ready).returncode == 0, 20, "Redis is ready", every_s=0.1)
    assert "NOAUTH" in redis.execute(["redis-cli", "ping"]).stdout

    # Both share one network here, unlike in a cluster, so the second gets another port.
    deployed = redis_overlay.get("Deployment", "fileq-worker")
    worker = start(pod, image, deployed, volumes)
    worker.wait_for("role.started")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        wait_until(lambda name=name: probe(worker, deployed, name) == "200", 20, name, every_s=0.1)  # type: ignore[misc]
    producer = start(
        pod, image, redis_overlay.get("Deployment", "fileq-producer"), volumes, FILEQ_OBSERVABILITY_METRICS_PORT="9091"
    )
    producer.wait_for("role.started")
    (volumes.claim("fileq-files") / "letter.txt").write_text("Dear reader")
    assert completed(worker)["job_id"] in producer.wait_for('"job.produced"')
    assert "Read-only file system" in producer.execute(["touch", "/data/x.tmp"]).stderr
    assert worker.execute(["touch", "/data/x.tmp"]).returncode == 0

    for name, value in (("appendonly", "yes"), ("maxmemory-policy", "noeviction"), ("appendfsync", "everysec")):
        assert ask(redis, "config", "get", name).split() == [name, value]
    assert producer.stop() == 0
    assert worker.stop() == 0
    assert ask(redis, "llen", "jobqueue:completed") == "1"
    assert redis.stop() == 0
    assert all(PASSWORD not in container.text() for container in (redis, worker, producer))


def test_the_redis_for_trials_does_not_start_without_a_password(
    redis_image: Image, pod: Pod, redis_overlay: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the Secret has an empty password, which would mean none."""
    example = yaml.safe_load((K8S / "base" / "secret.example.yaml").read_text())
    monkeypatch.setitem(SECRETS, "fileq-redis", example["stringData"])
    redis = start(pod, redis_image, redis_overlay.get("StatefulSet", "redis"), Volumes(tmp_path, redis_overlay))
    assert redis.wait() != 0
    assert "the redis-password of the Secret fileq-redis is empty" in redis.text()


def test_the_redis_for_trials_keeps_its_data_over_a_kill(
    redis_image: Image, pod: Pod, redis_overlay: Manifests, tmp_path: Path
) -> None:
    volumes = Volumes(tmp_path, redis_overlay)

    def start_redis() -> Container:
        redis = start(pod, redis_image, redis_overlay.get("StatefulSet", "redis"), volumes)
        wait_until(lambda: ask(redis, "ping") == "PONG", 20, "Redis is ready", every_s=0.1)
        return redis

    first = start_redis()
    assert ask(first, "set", "kept", "yes") == "OK"
    first.kill()
    assert ask(start_redis(), "get", "kept") == "yes"


def test_the_single_overlay_processes_a_file(image: Image, pod: Pod, tmp_path: Path) -> None:
    single = built(K8S / "overlays" / "single")
    volumes = Volumes(tmp_path, single)
    container = start(pod, image, single.get("Deployment", "fileq"), volumes)
    container.wait_for("role.started")
    (volumes.claim("fileq-files", "files") / "letter.txt").write_text("Dear reader")
    completed(container)
    assert (volumes.claim("fileq-files", "broker") / "fileq.db").exists()
    assert container.stop() == 0


def test_the_services_of_compose_process_a_file(image: Image, redis_image: Image, pod: Pod, tmp_path: Path) -> None:
    """Low: Redis without password; here every service uses the one that Compose passes, and Redis asks for it."""
    services = compose(REDIS_PASSWORD=PASSWORD)["services"]
    sources = {"./deploy/compose/server": "server-script", "./deploy/k8s/components/redis": "redis-config"}
    for source, name in sources.items():
        shutil.copytree(REPOSITORY / source, tmp_path / name)
    for name in ("inbox", "redis", "server"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)

    def start(name: str, image: Image, **env: str) -> Container:
        service = services[name]
        mounts = [volume.split(":") for volume in service["volumes"]]
        return pod.start(
            image,
            service.get("command", []),
            command=service.get("entrypoint", []),
            env=service.get("environment", {}) | {"FILEQ_PRODUCER_SETTLE_UNCLOSED": "200ms"} | env,
            volumes=[
                (target, tmp_path / sources.get(source, Path(source).name), "ro" in how)
                for source, target, *how in mounts
            ],
            tmpfs=service.get("tmpfs", []),
            hosts=["redis"],
            user=int(service["user"].partition(":")[0]) if "user" in service else None,
        )

    redis = start("redis", redis_image)
    kind, line = services["redis"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    wait_until(lambda: redis.execute(["sh", "-c", line]).returncode == 0, 20, "Redis is healthy", every_s=0.1)
    assert "NOAUTH" in redis.execute(["redis-cli", "ping"]).stdout
    assert redis.execute(["env", "REDIS_PASSWORD=another", "sh", "-c", line]).returncode != 0
    own = Path(f"/proc/{redis.pid}/cmdline").read_text()
    assert own.startswith("redis-server"), own
    assert PASSWORD not in own
    config = 'REDISCLI_AUTH="$REDIS_PASSWORD" redis-cli config get maxmemory-policy'
    assert redis.execute(["sh", "-c", config]).stdout.split() == ["maxmemory-policy", "noeviction"]
    worker = start("worker", image)
    worker.wait_for("role.started")
    producer = start("producer", image, FILEQ_OBSERVABILITY_METRICS_PORT="9091")
    producer.wait_for("role.started")
    (tmp_path / "inbox" / "letter.txt").write_text("Dear reader")
    completed(worker)

    server = start("server", image, FILEQ_OBSERVABILITY_METRICS_PORT="9092")
    key = server.wait_for("the API key, shown only this once: ").rpartition(" ")[2].strip()
    server.wait_for("server.opened")
    assert answer_of(server, key) == "200 1"
    assert answer_of(server, "wrong").startswith("401")
    assert server.stop() == 0
    again = start("server", image, FILEQ_OBSERVABILITY_METRICS_PORT="9092")
    again.wait_for("server.opened")
    assert answer_of(again, key) == "200 1", "the volume keeps the key"
    assert key not in again.text()
    assert [container.stop() for container in (again, producer, worker, redis)] == [0, 0, 0, 0]
    assert all(PASSWORD not in container.text() for container in pod.containers)


def answer_of(server: Container, key: str) -> str:
    """The status of GET /stats with this key, and how many jobs were processed."""
    code = (
        "import http.client as h, json; c = h.HTTPConnection('127.0.0.1', 8080, timeout=5); "
        f"c.request('GET', '/api/v1/stats', headers={{'Host': 'server', 'X-API-Key': {key!r}}}); r = c.getresponse(); "
        "print(r.status, json.loads(r.read()).get('total_processed'))"
    )
    return server.execute(["python", "-c", code]).stdout.strip()
