"""The manifests as `kubectl kustomize` and Compose read them, and the parts that tests need to run a pod."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fileq.config import Loaded, load
from tests.conftest import require

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = ("single", "redis", "keda", "monitoring", "serve")
# Kinds of operators, which Kubernetes' own schemas do not contain.
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject"}
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}

Manifest = dict[str, Any]


def kustomize(directory: Path) -> str:
    """What `kubectl apply -k` would send."""
    kubectl = require("kubectl", shutil.which("kubectl"))
    built = subprocess.run(
        [kubectl, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (built.returncode, built.stderr) == (0, ""), f"{built.stderr}\n(kubectl 1.27 or later is needed)"
    return built.stdout


@functools.cache
def built(directory: Path) -> Manifests:
    return Manifests(kustomize(directory))


class Manifests:
    def __init__(self, text: str) -> None:
        self.all: list[Manifest] = list(yaml.safe_load_all(text))

    def kinds(self) -> set[str]:
        return {manifest["kind"] for manifest in self.all}

    def of(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.all if manifest["kind"] == kind]

    def get(self, kind: str, name: str) -> Manifest:
        [found] = [manifest for manifest in self.of(kind) if manifest["metadata"]["name"] == name]
        return found

    def workloads(self) -> list[Manifest]:
        return self.of("Deployment") + self.of("StatefulSet")

    def fileqs(self) -> list[Manifest]:
        """The Deployments that run fileq itself."""
        return self.of("Deployment")

    def files_of(self, volume: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """The files that a volume from a ConfigMap or a Secret holds."""
        if "configMap" in volume:
            data: dict[str, str] = self.get("ConfigMap", volume["configMap"]["name"])["data"]
            return data
        return dict(secrets[volume["secret"]["secretName"]])


def pod_of(workload: Manifest) -> Manifest:
    pod: Manifest = workload["spec"]["template"]["spec"]
    return pod


def container_of(workload: Manifest) -> Manifest:
    [container] = pod_of(workload)["containers"]
    assert isinstance(container, dict)
    return container


def environment_of(workload: Manifest) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container_of(workload).get("env", [])}


def mounts_of(workload: Manifest) -> dict[str, Manifest]:
    """By path: the mount, and its volume as `volume`."""
    volumes = {volume["name"]: volume for volume in pod_of(workload)["volumes"]}
    return {m["mountPath"]: {**m, "volume": volumes.get(m["name"])} for m in container_of(workload)["volumeMounts"]}


def configuration_of(workload: Manifest, manifests: Manifests, directory: Path) -> Loaded:
    """The configuration that fileq loads from the pod's ConfigMap and environment, with another password file."""
    mount = mounts_of(workload)["/etc/fileq"]
    text = manifests.files_of(mount["volume"], {})["config.yaml"]
    (directory / "redis-password").write_text("secret")
    file = directory / "config.yaml"
    file.write_text(text.replace("/run/secrets/fileq", str(directory)))
    env = {k: v for k, v in environment_of(workload).items() if k != "FILEQ_CONFIG"}
    return load(str(file), environ=env)


def amount(text: str) -> float:
    """Memory in bytes, or a number of CPUs."""
    if text.endswith("m"):
        return float(text[:-1]) / 1000
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|)", text)
    assert found, text
    return int(found[1]) * _UNITS[found[2]]


def compose(**passwords: str) -> Manifest:
    """docker-compose.yml as Compose reads it, with these variables in `.env`; LookupError for a required one."""
    variables = {"REDIS_PASSWORD": "of Redis", "GRAFANA_PASSWORD": "of Grafana"} | passwords

    def value_of(found: re.Match[str]) -> str:
        if found["name"] is None:
            return "$"
        if not variables.get(found["name"]):
            raise LookupError(f"{found['name']}: {found['message']}")
        return variables[found["name"]]

    def read(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: read(value) for key, value in node.items()}
        if isinstance(node, list):
            return [read(value) for value in node]
        return (
            re.sub(r"\$(?:\$|\{(?P<name>\w+):\?(?P<message>[^}]+)\})", value_of, node)
            if isinstance(node, str)
            else node
        )

    content: Manifest = read(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))
    return content
