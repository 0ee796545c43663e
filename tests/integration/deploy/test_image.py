"""The image: its Dockerfile is clean, builds, and runs as an unprivileged user on a read-only root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import fileq
from tests.support.container import Container, Image, Pod, instructions
from tests.support.manifests import K8S, built, compose, container_of
from tests.support.program import REPOSITORY as ROOT

# The first of them builds the image, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

HADOLINT = Path(sys.executable).with_name("hadolint")
DOCKERFILES = ["Dockerfile", "examples/container/Dockerfile"]


def start(image: Image, pod: Pod, directory: Path) -> Container:
    """Starts a container as `docker run` does, with volumes for the files and the broker."""
    volumes = []
    for name, target in (("inbox", "/data"), ("state", "/var/lib/fileq")):
        (directory / name).mkdir()
        (directory / name).chmod(0o777)
        volumes.append((target, directory / name, False))
    container = pod.start(image, volumes=volumes)
    container.wait_for("role.started")
    return container


@pytest.fixture(scope="module")
def running(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """One container for all tests that change nothing."""
    directory = tmp_path_factory.mktemp("running")
    with Pod(directory) as pod:
        yield start(image, pod, directory)


def lint(file: Path) -> tuple[int, str]:
    said = subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True, timeout=60, check=False)
    return said.returncode, said.stdout + said.stderr


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_hadolint_reports_nothing(dockerfile: str) -> None:
    assert lint(ROOT / dockerfile) == (0, "")


def test_hadolint_would_report_a_mistake(tmp_path: Path) -> None:
    careless = tmp_path / "Dockerfile"
    careless.write_text("FROM python\nRUN pip install rich\nENTRYPOINT fileq\n")
    code, said = lint(careless)
    assert code == 1
    assert {"DL3006", "DL3013", "DL3025"} <= set(re.findall(r"DL\d+", said))


def test_it_has_stages_labels_and_a_number_for_its_user(image: Image) -> None:
    assert [stage.name for stage in image.stages] == ["build", ""]
    assert all("-slim" in stage.base for stage in image.stages)
    assert image.user == 10001
    assert image.entrypoint == ["fileq"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in image.labels.items()}
    assert labels["version"] == fileq.__version__
    assert {"title", "description", "version", "revision", "licenses"} <= labels.keys()


def test_the_build_context_has_exactly_what_the_dockerfile_copies() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = []
    for word, rest in instructions((ROOT / "Dockerfile").read_text()):
        if word == "COPY" and "--from" not in rest:
            copied += [source for source in rest.split()[:-1] if not source.startswith("--")]
    assert all(any(name == path or name.startswith(f"{path}/") for path in allowed) for name in copied)
    assert all(any(name == path or name.startswith(f"{path}/") for name in copied) for path in allowed)


def test_it_holds_every_file_of_the_package(image: Image) -> None:
    """A directory without __init__.py is left out of a wheel, which no test in a checkout would notice."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "fileq"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
    [installed] = image.layer.glob("opt/fileq/lib/python3*/site-packages/fileq")
    there = {f"fileq/{path.relative_to(installed)}" for path in installed.rglob("*") if path.is_file()}
    assert {path for path in there if "__pycache__" not in path} == set(listed.stdout.split())


def test_its_user_can_read_every_file_with_any_umask_of_the_builder(image: Image) -> None:
    """pip sets the modes of the package; COPY sets those of other files."""
    assert (image.layer / "etc/fileq/config.yaml").stat().st_mode & 0o777 == 0o644
    closed = [
        path for path in image.layer.glob("opt/fileq/**/*") if not path.is_symlink() and not path.stat().st_mode & 4
    ]
    assert closed == []


def test_it_processes_a_file_and_stops_on_sigterm(image: Image, pod: Pod, tmp_path: Path) -> None:
    container = start(image, pod, tmp_path)
    (tmp_path / "inbox" / "letter.txt").write_text("Dear reader")
    done = json.loads(container.wait_for('"job.completed"'))
    assert done["level"] == "info"
    assert (tmp_path / "state" / "fileq.db").exists()
    assert container.stop() == 0
    assert "role.stopped" in container.text()


def test_it_is_unprivileged_and_can_not_write_elsewhere(running: Container) -> None:
    status = dict(re.findall(r"^(\w+):\s+(.*)$", Path(f"/proc/{running.pid}/status").read_text(), re.MULTILINE))
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
    assert status["NSpid"].split()[-1] == "1"
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert "HOME" not in running.env
    for path in ("/app/x", "/opt/fileq/x", "/etc/fileq/x", "/x", "/var/x"):
        refused = running.execute(["touch", path])
        assert (refused.returncode, "Read-only file system" in refused.stderr) == (1, True), path
    assert running.execute(["touch", "/tmp/x", "/data/x", "/var/lib/fileq/x"]).returncode == 0


def test_its_health_check_fails_when_the_process_hangs(running: Container, image: Image) -> None:
    assert running.execute(image.healthcheck).returncode == 0
    elsewhere = running.execute(["env", "FILEQ_OBSERVABILITY_METRICS_PORT=1", *image.healthcheck])
    assert (elsewhere.returncode, "ConnectionRefusedError" in elsewhere.stderr) == (1, True)


def test_the_program_in_it_is_the_one_that_was_installed(running: Container) -> None:
    ended = running.execute(["python", "-c", "import fileq; print(fileq.__file__)"])
    assert ended.stdout.startswith("/opt/fileq/lib/"), ended.stderr
    assert running.execute(["fileq", "--version"]).stdout == f"fileq {fileq.__version__}\n"
    listed = running.execute(["fileq", "config", "list"])
    assert "/etc/fileq/config.yaml" in listed.stdout, listed.stderr


# Compose

PASSWORDS = {"REDIS_PASSWORD": "of Redis", "GRAFANA_PASSWORD": "of Grafana"}


def test_compose_builds_and_names_this_version() -> None:
    for role in ("producer", "worker"):
        service = compose()["services"][role]
        assert (service["build"], service["image"]) == (".", f"fileq:{fileq.__version__}")
        assert service["command"] == [role, "--app-dir", "/app"]
    assert compose()["services"]["server"]["image"] == f"fileq:{fileq.__version__}"
    for role in ("producer", "worker", "server"):
        assert compose()["services"][role]["environment"]["FILEQ_BROKER"] == "redis"
    volumes = {role: compose()["services"][role]["volumes"] for role in ("producer", "worker")}
    assert volumes == {"producer": ["./inbox:/data:ro"], "worker": ["./inbox:/data"]}


def test_compose_gives_the_worker_time_to_stop() -> None:
    from fileq.config import load

    shutdown_s = load(str(ROOT / "deploy/image/config.yaml"), environ={}).config.worker.shutdown_timeout
    assert float(compose()["services"]["worker"]["stop_grace_period"].removesuffix("s")) >= shutdown_s + 15


def test_base_images_are_pinned_by_version_and_digest(image: Image) -> None:
    """Low: images without digests. A tag can be moved to another image; a digest can't."""
    bases = [service["image"] for service in compose()["services"].values() if "build" not in service]
    assert len(bases) == 3
    for name in (*bases, *(stage.base for stage in image.stages)):
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+[a-z0-9.-]*@sha256:[0-9a-f]{64}", name), name
    redis = container_of(built(K8S / "overlays" / "redis").get("StatefulSet", "redis"))["image"]
    assert redis == compose()["services"]["redis"]["image"]


def test_compose_publishes_to_this_machine_only_and_mounts_what_is_there() -> None:
    for service in compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./") and source != "./inbox":
                assert (ROOT / source).exists(), volume
            elif not source.startswith("./"):
                assert source in compose()["volumes"]


def test_compose_runs_every_service_unprivileged_on_a_read_only_root() -> None:
    for name, service in compose()["services"].items():
        hardened = {key: service.get(key) for key in ("read_only", "cap_drop", "security_opt")}
        assert hardened == {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}, name
        assert "cap_add" not in service, name
        assert not service.get("privileged"), name


def test_compose_keeps_redis_and_prometheus_from_other_networks() -> None:
    """Low: Redis without password; nothing but fileq reaches it, and it reaches nothing outside."""
    services, networks = compose()["services"], compose()["networks"]
    on = {name: {who for who, service in services.items() if name in service["networks"]} for name in networks}
    assert on["broker"] == {"redis", "producer", "worker", "server"}
    assert on["metrics"] == {"prometheus", "grafana", "producer", "worker"}
    assert networks["broker"] == networks["metrics"] == {"internal": True}
    assert on["default"] == {"worker", "server", "grafana"}
    assert {name for name, service in services.items() if "ports" in service} == {"server", "grafana"}


def test_compose_starts_only_with_passwords_and_grafana_asks_for_one() -> None:
    """Low: Redis without password, Grafana anonymous."""
    for missing in PASSWORDS:
        with pytest.raises(LookupError, match=f"{missing}: run sh deploy/compose/setup"):
            compose(**{missing: ""})
    services = compose()["services"]
    for role in ("producer", "worker", "server"):
        assert services[role]["environment"]["FILEQ_REDIS_PASSWORD"] == "of Redis"
    grafana = services["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"] == "of Grafana"
    assert (grafana["GF_AUTH_ANONYMOUS_ENABLED"], grafana["GF_USERS_ALLOW_SIGN_UP"]) == ("false", "false")


def test_the_setup_of_compose_makes_passwords_once_that_others_can_not_read(tmp_path: Path) -> None:
    script = tmp_path / "deploy/compose/setup"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "deploy/compose/setup", script)
    for _ in range(2):
        subprocess.run(["sh", script], cwd="/", check=True, umask=0o022)
        made = (tmp_path / ".env").read_text()
    values = dict(line.split("=") for line in made.splitlines())
    assert values.keys() == PASSWORDS.keys()
    assert len(set(values.values())) == 2
    assert all(re.fullmatch("[0-9a-f]{48}", value) for value in values.values())
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "inbox").stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(tmp_path)) == [".env", "deploy", "inbox"]
    subprocess.run(["sh", script], check=True)
    assert (tmp_path / ".env").read_text() == made
    ignored = subprocess.run(
        ["git", "-c", "safe.directory=*", "check-ignore", ".env", ".env.new", "inbox/"], cwd=ROOT, check=False
    )
    assert ignored.returncode == 0


def test_grafana_finds_its_data_source_and_its_dashboard() -> None:
    mounts = dict(v.split(":")[:2] for v in compose()["services"]["grafana"]["volumes"])
    provisioning = ROOT / next(s for s, t in mounts.items() if t == "/etc/grafana/provisioning")
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load((provisioning / "dashboards/fileq.yaml").read_text())["providers"]
    assert f"{provider['options']['path']}/fileq.json" == mounts["./deploy/grafana/fileq.json"]
