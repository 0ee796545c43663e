"""deploy/k8s: what kustomize builds is valid, and holds what pods of fileq need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import fileq
from tests.support.manifests import (
    CUSTOM,
    K8S,
    OVERLAYS,
    ROOT,
    Manifest,
    Manifests,
    amount,
    built,
    configuration_of,
    container_of,
    environment_of,
    kustomize,
    mounts_of,
    pod_of,
)

VALIDATE = Path(sys.executable).with_name("kubernetes-validate")
DIRECTORIES = [K8S / "base", *(K8S / "overlays" / name for name in OVERLAYS), ROOT / "examples" / "container"]
WORKER_ITSELF = 256 << 20  # with its fork server; seen: 110 MB


@pytest.fixture(params=DIRECTORIES, ids=lambda path: path.name)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return built(request.param)


def base() -> Manifests:
    return built(K8S / "base")


def overlay(name: str) -> Manifests:
    return built(K8S / "overlays" / name)


def deployment(role: str) -> Manifest:
    return base().get("Deployment", f"fileq-{role}")


def validate(file: Path) -> list[tuple[str, str]]:
    """Level and text of each message of kubernetes-validate."""
    said = subprocess.run([VALIDATE, "--strict", file], capture_output=True, text=True, timeout=60, check=False)
    lines = (said.stdout + said.stderr).splitlines()
    assert (said.returncode == 0) is not any(line.startswith("ERROR") for line in lines), said
    return [(line.split()[0], line) for line in lines]


# Valid


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_every_kustomization_is_strictly_valid(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(kustomize(directory))
    said = validate(file)
    count = len(built(directory).all)
    kinds = {line.split("kind ")[1].split()[0] for level, line in said if level == "WARN"}
    assert kinds == built(directory).kinds() & CUSTOM
    assert [level for level, _ in said].count("INFO") == count - sum(m["kind"] in CUSTOM for m in built(directory).all)
    assert {level for level, _ in said} <= {"INFO", "WARN"}, said


def test_a_misspelt_field_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(kustomize(K8S / "base").replace("enableServiceLinks", "enableServiceLink"))
    assert [level for level, _ in validate(file)].count("ERROR") == 2


def test_the_example_of_a_secret_is_valid_and_is_what_the_pods_mount() -> None:
    file = K8S / "base" / "secret.example.yaml"
    assert [level for level, _ in validate(file)] == ["INFO"]
    secret = yaml.safe_load(file.read_text())
    assert "Secret" not in base().kinds()  # the password of an example must never be deployed
    for workload in base().fileqs():
        mount = mounts_of(workload)["/run/secrets/fileq"]
        assert mount["volume"]["secret"]["secretName"] == secret["metadata"]["name"]
        config = yaml.safe_load(base().files_of(mounts_of(workload)["/etc/fileq"]["volume"], {})["config.yaml"])
        assert config["redis"]["password_file"] == f"/run/secrets/fileq/{next(iter(secret['stringData']))}"


def test_images_are_pinned_and_fileq_is_of_this_version(manifests: Manifests) -> None:
    for workload in manifests.workloads():
        name, _, tag = container_of(workload)["image"].partition(":")
        assert tag
        assert tag != "latest"
        if name == "fileq":
            assert tag == fileq.__version__


# Pods


def test_pods_run_unprivileged_on_a_read_only_root(manifests: Manifests) -> None:
    for workload in manifests.workloads():
        pod, container = pod_of(workload), container_of(workload)
        who = pod["securityContext"]
        assert who["runAsNonRoot"] is True
        assert who["runAsUser"] == who["runAsGroup"] == who["fsGroup"] > 0
        assert who["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert "emptyDir" in mounts_of(workload)["/tmp"]["volume"]


def test_pods_of_fileq_run_as_the_image_does(manifests: Manifests) -> None:
    for workload in manifests.fileqs():
        assert f"USER {pod_of(workload)['securityContext']['runAsUser']}" in (ROOT / "Dockerfile").read_text()


def test_both_roles_see_one_shared_claim_at_the_same_path_and_the_producer_only_reads() -> None:
    [claim] = base().of("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    mounts = {role: mounts_of(deployment(role))["/data"] for role in ("producer", "worker")}
    for mount in mounts.values():
        assert mount["volume"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert mounts["producer"]["readOnly"] is True
    assert mounts["worker"].get("readOnly", False) is False


def test_the_configuration_of_every_pod_is_valid(manifests: Manifests, tmp_path: Path) -> None:
    for workload in manifests.fileqs():
        loaded = configuration_of(workload, manifests, tmp_path)
        assert loaded.unknown_env == ()
        assert loaded.config.producer.scan_dir == "/data"
        assert loaded.config.broker == environment_of(workload)["FILEQ_BROKER"]
        assert environment_of(workload)["FILEQ_CONFIG"] == "/etc/fileq/config.yaml"


def test_the_broker_of_the_base_is_redis() -> None:
    assert {environment_of(workload)["FILEQ_BROKER"] for workload in base().fileqs()} == {"redis"}


def test_pods_have_time_to_finish_and_to_release_their_jobs(manifests: Manifests, tmp_path: Path) -> None:
    for workload in manifests.fileqs():
        is_server = container_of(workload)["args"] == ["serve"]  # it has no jobs; requests in progress have 5 s
        shutdown_s = (
            5.0 if is_server else configuration_of(workload, manifests, tmp_path).config.worker.shutdown_timeout
        )
        assert pod_of(workload)["terminationGracePeriodSeconds"] >= shutdown_s + 15


def test_probes_use_the_health_endpoints(manifests: Manifests, tmp_path: Path) -> None:
    for workload in manifests.fileqs():
        container = container_of(workload)
        [port] = [port for port in container["ports"] if port["name"] == "metrics"]
        assert (
            port["containerPort"] == configuration_of(workload, manifests, tmp_path).config.observability.metrics_port
        )
        paths = {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}
        for probe, path in paths.items():
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_the_resources_of_workers_fit_their_slots(manifests: Manifests, tmp_path: Path) -> None:
    for workload in manifests.fileqs():
        worker = configuration_of(workload, manifests, tmp_path).config.worker
        resources = container_of(workload)["resources"]
        assert "cpu" not in resources["limits"]
        if container_of(workload)["args"] not in (["producer"], ["serve"]):
            assert worker.max_memory is not None
            needed = WORKER_ITSELF + worker.count * worker.max_memory
            assert needed <= amount(resources["requests"]["memory"]) <= amount(resources["limits"]["memory"])
            assert amount(resources["requests"]["cpu"]) >= worker.count / 2


# Services, policies and configuration


def labels_of(workload: Manifest) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def selected(selector: dict[str, str], manifests: Manifests) -> set[str]:
    assert selector
    workloads = manifests.workloads()
    return {w["metadata"]["name"] for w in workloads if selector.items() <= labels_of(w).items()}


def test_selectors_find_their_own_pods_and_no_others(manifests: Manifests) -> None:
    names = {workload["metadata"]["name"] for workload in manifests.fileqs()}
    for workload in manifests.workloads():
        assert selected(workload["spec"]["selector"]["matchLabels"], manifests) == {workload["metadata"]["name"]}
    for kind, where in (("Service", "selector"), ("NetworkPolicy", "podSelector")):
        for found in manifests.of(kind):
            selector = found["spec"][where]
            name = found["metadata"]["name"]
            wanted = {name} if name in ("redis", "fileq-serve") else names
            assert selected(selector.get("matchLabels", selector), manifests) == wanted
    for budget in manifests.of("PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"]["matchLabels"], manifests) == {"fileq-worker"}


def test_network_policies_restrict_only_incoming_connections() -> None:
    [policy] = base().of("NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert "egress" not in policy["spec"]
    [rule] = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    [who] = rule["from"]
    assert who["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}


def test_a_drain_evicts_one_worker_at_a_time() -> None:
    [budget] = base().of("PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert deployment("worker")["spec"]["replicas"] > 1


def test_a_changed_configuration_restarts_both_roles(tmp_path: Path) -> None:
    shutil.copytree(K8S / "base", tmp_path / "base")
    config = tmp_path / "base" / "config.yaml"
    config.write_text(config.read_text().replace("count: 4", "count: 5"))
    changed = Manifests(kustomize(tmp_path / "base"))

    def mounted(manifests: Manifests) -> set[str]:
        return {mounts_of(w)["/etc/fileq"]["volume"]["configMap"]["name"] for w in manifests.fileqs()}

    assert len(mounted(base())) == len(mounted(changed)) == 1
    assert mounted(base()) != mounted(changed)


# Overlays


def test_single_is_one_replica_of_all_on_sqlite_with_its_own_claim(tmp_path: Path) -> None:
    single = overlay("single")
    [all_] = single.of("Deployment")
    assert single.kinds() == {"ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "Service"}
    assert (container_of(all_)["args"], all_["spec"]["replicas"]) == (["all"], 1)
    assert all_["spec"]["strategy"] == {"type": "Recreate"}
    [claim] = single.of("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    config = configuration_of(all_, single, tmp_path).config
    assert config.broker == "sqlite"
    broker = mounts_of(all_)[str(Path(config.sqlite.path).parent)]
    assert broker["volume"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert broker["subPath"] != mounts_of(all_)["/data"]["subPath"]
    assert "/run/secrets/fileq" not in mounts_of(all_)


def test_the_pods_connect_to_the_redis_for_trials(tmp_path: Path) -> None:
    redis = overlay("redis")
    service = redis.get("Service", "redis")
    [port] = service["spec"]["ports"]
    for workload in redis.fileqs():
        addr = configuration_of(workload, redis, tmp_path).config.redis.addr
        assert addr == f"{service['metadata']['name']}:{port['port']}"
    policy = redis.get("NetworkPolicy", "redis")
    [who] = policy["spec"]["ingress"][0]["from"]
    assert selected(who["podSelector"]["matchLabels"], redis) == {"fileq-producer", "fileq-worker"}
    [claim] = redis.get("StatefulSet", "redis")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == mounts_of(redis.get("StatefulSet", "redis"))["/data"]["name"]


def test_keda_scales_on_waiting_and_running_work_and_never_to_none(tmp_path: Path) -> None:
    keda = overlay("keda")
    [scaled] = keda.of("ScaledObject")
    spec = scaled["spec"]
    worker = keda.get("Deployment", spec["scaleTargetRef"]["name"])
    assert "replicas" not in worker["spec"]
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    [trigger] = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    slots = configuration_of(worker, keda, tmp_path).config.worker.count
    assert trigger["metadata"]["threshold"] == str(slots)
    assert all(isinstance(value, str) for value in trigger["metadata"].values())  # KEDA accepts only strings


def test_monitoring_scrapes_the_pods_and_adds_rules_and_dashboard() -> None:
    monitoring = overlay("monitoring")
    [monitor] = monitoring.of("PodMonitor")
    assert selected(monitor["spec"]["selector"]["matchLabels"], monitoring) == {"fileq-producer", "fileq-worker"}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    ports = {container_of(w)["ports"][0]["name"] for w in monitoring.fileqs()}
    assert ({endpoint["port"]}, endpoint["path"]) == (ports, "/metrics")
    [rules] = monitoring.of("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    dashboard = monitoring.get("ConfigMap", "fileq-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    shown: Any = json.loads(dashboard["data"]["fileq.json"])
    assert shown == json.loads((ROOT / "deploy" / "grafana" / "fileq.json").read_text())


def test_the_server_is_reached_by_its_service_with_the_key_of_a_secret(tmp_path: Path) -> None:
    serve = overlay("serve")
    workload = serve.get("Deployment", "fileq-serve")
    server = configuration_of(workload, serve, tmp_path).config.server
    [port] = serve.get("Service", "fileq-serve")["spec"]["ports"]
    [opened] = [one for one in container_of(workload)["ports"] if one["name"] == port["targetPort"]]
    assert (server.bind, server.port, server.hosts) == ("0.0.0.0", opened["containerPort"], ("fileq-serve",))
    example = K8S / "components" / "serve" / "secret.example.yaml"
    assert [level for level, _ in validate(example)] == ["INFO"]
    secret = yaml.safe_load(example.read_text())
    mount = mounts_of(workload)[str(Path(server.api_key_file).parent)]
    assert mount["volume"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert [*secret["stringData"]] == [Path(server.api_key_file).name]
    assert "Secret" not in serve.kinds()
    [rule] = serve.get("NetworkPolicy", "fileq-serve")["spec"]["ingress"]
    assert rule["ports"] == [{"port": opened["name"], "protocol": "TCP"}]
    assert all(one["podSelector"]["matchLabels"] for one in rule["from"]), "never every pod"
    assert mounts_of(workload)["/data"]["readOnly"] is True


def test_components_can_be_combined(tmp_path: Path) -> None:
    """Each overlay is the base and one component; a kustomization can name several."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    mine = tmp_path / "deploy" / "mine"
    mine.mkdir()
    together = {
        "resources": ["../k8s/base"],
        "components": [f"../k8s/components/{name}" for name in ("redis", "keda", "monitoring", "serve")],
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(together))
    assert Manifests(kustomize(mine)).kinds() >= CUSTOM | {"StatefulSet", "Deployment"}
