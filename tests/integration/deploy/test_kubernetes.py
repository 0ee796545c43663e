"""deploy/k8s: what kustomize builds is valid, and holds what pods of fileq need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

import fileq
from fileq.core.api_key import FEWEST_CHARACTERS
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
from tests.support.program import run

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
    assert "Secret" not in base().kinds()
    assert set(secret["stringData"].values()) == {""}, "an example that is deployed must not work"
    for workload in base().fileqs():
        mount = mounts_of(workload)["/run/secrets/fileq"]
        assert mount["volume"]["secret"]["secretName"] == secret["metadata"]["name"]
        config = yaml.safe_load(base().files_of(mounts_of(workload)["/etc/fileq"]["volume"], {})["config.yaml"])
        assert config["redis"]["password_file"] == f"/run/secrets/fileq/{next(iter(secret['stringData']))}"


def test_images_are_pinned_and_fileq_is_of_this_version(manifests: Manifests) -> None:
    """Low: images without digests; the digest of fileq's own image is not known before it is built."""
    for workload in manifests.workloads():
        name, _, tag = container_of(workload)["image"].partition(":")
        if name == "redis":
            assert re.fullmatch(r"\d+\.\d+\.\d+-alpine@sha256:[0-9a-f]{64}", tag)
        else:
            assert (name, tag) in (("fileq", fileq.__version__), ("registry.example.com/documents", "1"))


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
        if container_of(workload)["args"][0] not in ("producer", "serve"):
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
            assert selected(selector.get("matchLabels", selector), manifests) == wanted, name
    for budget in manifests.of("PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"]["matchLabels"], manifests) == {"fileq-worker"}


def peers(rule: Manifest, direction: str) -> list[tuple[str, str]]:
    """Namespace ("" is that of the policy) and name of the pods that a rule admits."""
    found = []
    for peer in rule[direction]:
        assert peer.keys() <= {"namespaceSelector", "podSelector"}, "an ipBlock has a test of its own"
        namespace = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": ""}})["matchLabels"]
        [name] = peer["podSelector"]["matchLabels"].values()
        found.append((namespace["kubernetes.io/metadata.name"], name))
    return found


def reached(policy: Manifest) -> dict[str, set[tuple[str, str, str, int | str]]]:
    """By direction: namespace, name, protocol and port of what a policy admits."""
    return {
        key: {
            (*peer, port["protocol"], port["port"])
            for rule in policy["spec"].get(key, [])
            for peer in peers(rule, direction)
            for port in rule["ports"]
        }
        for key, direction in (("ingress", "from"), ("egress", "to"))
    }


def governed(policy: Manifest) -> list[str]:
    return [kind.lower() for kind in policy["spec"]["policyTypes"]]


DNS = {("kube-system", "kube-dns", "UDP", 53), ("kube-system", "kube-dns", "TCP", 53)}
REDIS = {("", "redis", "TCP", 6379)}
PROMETHEUS = {("monitoring", "prometheus", "TCP", "metrics")}


def test_every_pod_is_under_a_policy_for_both_directions(manifests: Manifests) -> None:
    """Low: no egress policy. A pod that no policy selects may connect to everything."""
    for workload in manifests.workloads():
        policies = [
            policy
            for policy in manifests.of("NetworkPolicy")
            if policy["spec"]["podSelector"]["matchLabels"].items() <= labels_of(workload).items()
        ]
        assert {kind for policy in policies for kind in governed(policy)} == {"ingress", "egress"}


def test_fileq_reaches_dns_and_redis_only_and_only_prometheus_reaches_it() -> None:
    """Low: no egress policy."""
    own, redis = base().get("NetworkPolicy", "fileq"), base().get("NetworkPolicy", "fileq-redis")
    assert reached(own) == {"ingress": PROMETHEUS, "egress": DNS}
    assert reached(redis) == {"ingress": set(), "egress": REDIS}
    assert {policy["metadata"]["name"] for policy in base().of("NetworkPolicy")} == {"fileq", "fileq-redis"}


def test_without_redis_only_dns_is_reached() -> None:
    """Low: no egress policy."""
    [policy] = overlay("single").of("NetworkPolicy")
    assert reached(policy) == {"ingress": PROMETHEUS, "egress": DNS}


def test_the_redis_for_trials_reaches_nothing() -> None:
    """Low: no egress policy."""
    policy = overlay("redis").get("NetworkPolicy", "redis")
    assert reached(policy) == {"ingress": {("", "fileq", "TCP", "redis")}, "egress": set()}
    assert "Egress" in policy["spec"]["policyTypes"]


def test_webhooks_go_by_https_to_public_addresses_from_workers_only_where_they_are_enabled(tmp_path: Path) -> None:
    """Low: no egress policy. The addresses that the policy admits are among those that the sender calls."""
    for directory in DIRECTORIES:
        assert "fileq-webhooks" not in kustomize(directory)
    for name, workers in (("serve", {"fileq-worker"}), ("single", {"fileq"})):
        file = tmp_path / name / "kustomization.yaml"
        file.parent.mkdir()
        where = os.path.relpath(K8S, file.parent.resolve())
        parts = {"resources": [f"{where}/overlays/{name}"], "components": [f"{where}/components/webhooks"]}
        file.write_text(
            yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"} | parts)
        )
        manifests = Manifests(kustomize(file.parent))
        spec = manifests.get("NetworkPolicy", "fileq-webhooks")["spec"]
        [choice] = spec["podSelector"]["matchExpressions"]
        assert (choice["operator"], spec["policyTypes"]) == ("In", ["Egress"])
        assert workers == {
            workload["metadata"]["name"]
            for workload in manifests.workloads()
            if spec["podSelector"]["matchLabels"].items() <= labels_of(workload).items()
            and labels_of(workload).get(choice["key"]) in choice["values"]
        }
        [rule] = spec["egress"]
        assert rule["ports"] == [{"port": 443, "protocol": "TCP"}]
        blocks = [peer["ipBlock"] for peer in rule["to"]]
        for private in ("10.96.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.20.0.1", "192.168.1.1", "::1"):
            assert not is_admitted(private, blocks), private
        assert not is_admitted("fd00::1", blocks)
        assert is_admitted("93.184.215.14", blocks)
        assert is_admitted("2606:2800:21f:cb07::1", blocks)


def is_admitted(address: str, blocks: list[Manifest]) -> bool:
    found = ip_address(address)
    return any(
        found in ip_network(block["cidr"]) and not any(found in ip_network(text) for text in block.get("except", []))
        for block in blocks
    )


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
    assert (container_of(all_)["args"], all_["spec"]["replicas"]) == (["all", "--app-dir", "/app"], 1)
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
    assert reached(serve.get("NetworkPolicy", "fileq-serve"))["ingress"] == {
        ("", "true", "TCP", opened["name"]),
        ("ingress-nginx", "ingress-nginx", "TCP", opened["name"]),
    }


def test_the_example_of_the_servers_key_names_the_rule_and_is_refused_by_it(tmp_path: Path) -> None:
    """Low: secret.example names 16 characters. A key that can be read in this repository must not let anyone in."""
    example = yaml.safe_load((K8S / "components" / "serve" / "secret.example.yaml").read_text())
    key = example["stringData"]["api-key"]
    assert f"at least {FEWEST_CHARACTERS} printable characters" in key
    (tmp_path / "api-key").write_text(key)
    refused = run("serve", cwd=tmp_path, settings={"server.port": 0, "server.api_key_file": "api-key"})
    assert refused.returncode == 2
    assert f"api_key_file 'api-key' must hold a key of at least {FEWEST_CHARACTERS} printable" in refused.stderr
