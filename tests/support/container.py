"""Builds images and runs containers without a container engine, in namespaces of this machine.

Executes the instructions of a real Dockerfile. Two differences from an engine: FROM is the file system of this machine,
and packages come from the test environment instead of the network. Everything else is as written: every RUN and COPY,
the user, the environment, the entrypoint as PID 1, a read-only root, no capabilities, an isolated network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from tests.conftest import IN_CI
from tests.support.servers.watchdog import watchdog
from tests.support.waiting import wait_until

INIT = Path(__file__).with_name("container_init.py")
PYTHON, SITE, DEPENDENCIES = "/opt/test-python", "/opt/test-environment", "/opt/test-dependencies"
OUR_PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
# As in the official Python images, except for the path of python.
BASE_ENV = {"PATH": f"{PYTHON}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
STAND_IN = {"PYTHONPATH": DEPENDENCIES}


def as_root() -> list[str]:
    """The prefix that runs a command as root, which mount namespaces need."""
    if os.getuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n"]
    reason = "containers need root, or sudo without a password, to make their namespaces"
    if IN_CI:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Stage:
    """One FROM with its instructions. The settings of the last stage are those of the image."""

    def __init__(self, base: str, name: str, inherited: Image | None) -> None:
        self.base = base
        self.name = name
        self.is_on_ours = inherited is not None
        self.steps: list[tuple[str, list[Any]]] = []
        self.env = dict(inherited.env) if inherited else dict(BASE_ENV)
        self.cwd = inherited.cwd if inherited else "/"
        self.user = inherited.user if inherited else 0
        self.labels: dict[str, str] = dict(inherited.labels) if inherited else {}
        self.entrypoint: list[str] = list(inherited.entrypoint) if inherited else []
        self.command: list[str] = list(inherited.command) if inherited else []
        self.healthcheck: list[str] = list(inherited.healthcheck) if inherited else []


class Image:
    """The result of a Dockerfile: a layer of files, and the settings to run it."""

    def __init__(self, dockerfile: Path, *, context: Path, directory: Path, base: Image | None = None) -> None:
        self.directory = directory
        self._base = base
        self.stages = self._read(dockerfile.read_text())
        last = self.stages[-1]
        self.env, self.cwd, self.user = last.env, last.cwd, last.user
        self.labels, self.entrypoint, self.command = last.labels, last.entrypoint, last.command
        self.healthcheck = last.healthcheck
        self.context = context
        self.layer = directory / "layer"

    def build(self) -> Self:
        self.layer.mkdir(parents=True, exist_ok=True)
        spec = {
            "is_build": True,
            "stages": [{"name": s.name, "is_on_ours": s.is_on_ours, "steps": s.steps} for s in self.stages],
            "context": str(self.context),
            "base": str(self._base.layer) if self._base else "",
            "save": str(self.layer),
            **surroundings(self.directory),
        }
        done = subprocess.run(
            _in_namespaces(spec, self.directory, []), capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return self

    def remove(self) -> None:
        """Removes it as root, who owns its files."""
        subprocess.run([*as_root(), "rm", "-rf", self.layer], check=True)

    def _read(self, text: str) -> list[Stage]:
        stages: list[Stage] = []
        arguments: dict[str, str] = {}
        for word, rest in instructions(text):
            if word == "ARG":
                name, _, value = rest.partition("=")
                arguments[name] = value
                continue
            if word == "FROM":
                base, _, name = expand(rest, arguments).partition(" AS ")
                inherited = self._base if self._base is not None and base.startswith("fileq:") else None
                stages.append(Stage(base, name, inherited))
                continue
            _apply(stages[-1], word, rest, arguments)
        return stages


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yields (word, rest) of each instruction, with lines joined and comments removed."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if line.strip():
            word, rest = line.strip().split(None, 1)
            yield word.upper(), rest.strip()


def expand(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: values.get(m[1] or m[2], ""), text)


def _apply(stage: Stage, word: str, rest: str, arguments: dict[str, str]) -> None:
    values = stage.env | arguments
    if word == "RUN":
        # A missing package is an error, not a download; and Debian's pip would refuse to install into our tree.
        env = stage.env | STAND_IN | {"PIP_NO_INDEX": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        stage.steps.append(("run", [rest, stage.cwd, env, stage.user]))
    elif word == "COPY":
        words = shlex.split(rest)
        flags = dict(w[2:].split("=", 1) for w in words if w.startswith("--"))
        *sources, target = (w for w in words if not w.startswith("--"))
        assert flags.keys() <= {"from", "chmod"}, f"COPY with {flags}"
        absolute = os.path.join(stage.cwd, target) if target != "./" else f"{stage.cwd}/"
        stage.steps.append(("copy", [flags.get("from", ""), sources, absolute, int(flags.get("chmod", "0"), 8)]))
    elif word == "ENV":
        stage.env |= {name: expand(value, values) for name, value in (w.split("=", 1) for w in shlex.split(rest))}
    elif word == "LABEL":
        stage.labels |= {name: expand(value, values) for name, value in (w.split("=", 1) for w in shlex.split(rest))}
    elif word == "WORKDIR":
        stage.cwd = rest
    elif word == "USER":
        stage.user = int(rest.partition(":")[0])
    elif word == "ENTRYPOINT":
        stage.entrypoint, stage.command = json.loads(rest), []
    elif word == "CMD":
        stage.command = json.loads(rest)
    elif word == "HEALTHCHECK":
        stage.healthcheck = json.loads(rest[rest.index("CMD") + 3 :])
    else:
        assert word == "EXPOSE", f"what does {word} do?"


def surroundings(directory: Path) -> dict[str, Any]:
    """This machine's Python and its packages, without fileq, which must come from the image."""
    site = sysconfig.get_paths()["purelib"]
    programs, links = directory / "programs", directory / "dependencies"
    if not links.exists():
        programs.mkdir()
        (programs / "python").write_text(f'#!/bin/sh\nexec {OUR_PYTHON} "$@"\n')
        (programs / "python").chmod(0o755)
        links.mkdir()
        for name in os.listdir(site):
            if "fileq" not in name:
                (links / name).symlink_to(f"{SITE}/{name}")
    return {"visible": [sys.base_prefix], "given": {PYTHON: str(programs), SITE: site, DEPENDENCIES: str(links)}}


def _in_namespaces(spec: Mapping[str, Any], directory: Path, prefix: Sequence[str]) -> list[str]:
    scratch = Path(tempfile.mkdtemp(prefix="fileq-scratch-", dir=directory))
    file = scratch.with_suffix(".json")
    file.write_text(json.dumps({**spec, "scratch": str(scratch)}))
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    return [*as_root(), *prefix, *unshare, OUR_PYTHON, "-I", str(INIT), str(file)]


class Pod:
    """Containers that share one isolated network."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.containers: list[Container] = []
        self._holder = subprocess.Popen(
            [*as_root(), "unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self.network = ["nsenter", f"--net=/proc/{_innermost(self._holder.pid)}/ns/net"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for container in self.containers:
            container.kill()
            print(f"--- output of {container.argv}\n{container.text()[-4000:]}")  # shown if the test failed
        self._holder.communicate()
        _make_ours(self.directory)

    def start(self, image: Image, arguments: Sequence[str] = (), **options: Any) -> Container:
        container = Container(self, image, arguments, **options)
        self.containers.append(container)
        return container


class Container:
    """One process tree on an image; read-only except for its volumes and tmpfs."""

    def __init__(
        self,
        pod: Pod,
        image: Image,
        arguments: Sequence[str] = (),
        *,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        volumes: Sequence[tuple[str, Path, bool]] = (),
        tmpfs: Sequence[str] = ("/tmp",),
        hosts: Sequence[str] = (),
        user: int | None = None,
    ) -> None:
        self.argv = [*(command or image.entrypoint), *(arguments or ([] if command else image.command))]
        spec = {
            "is_build": False,
            "image": str(image.layer),
            "hosts": list(hosts),
            "volumes": [(target, str(source), read_only) for target, source, read_only in volumes],
            "tmpfs": list(tmpfs),
            "cwd": image.cwd,
            "user": image.user if user is None else user,
            "env": image.env | STAND_IN | dict(env or {}),
            "argv": self.argv,
            **surroundings(image.directory),
        }
        self.env = spec["env"]
        self.user = spec["user"]
        self._log = pod.directory / f"container-{os.urandom(4).hex()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                _in_namespaces(spec, pod.directory, pod.network), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        watchdog.add(self._process.pid, str(pod.directory))

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str, timeout_s: float = 30.0) -> str:
        def said() -> str | None:
            for line in self.text().splitlines():
                if words in line:
                    return line
            assert self._process.poll() is None, f"it ended before {words!r}:\n{self.text()[-4000:]}"
            return None

        found = wait_until(said, timeout_s, f"{words!r} in its output")
        assert found is not None
        return found

    @property
    def pid(self) -> int:
        """The pid of its PID 1 outside of the container."""
        return _innermost(self._process.pid)

    def execute(self, command: Sequence[str], timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, as `docker exec` does: same files, network, user and environment."""
        words = [f"{name}={value}" for name, value in self.env.items()]
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--root", "--wd"]
        who = [f"--setuid={self.user}", f"--setgid={self.user}"]
        return subprocess.run(
            [*as_root(), *enter, *who, "env", "-i", *words, *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def wait(self, timeout_s: float = 60.0) -> int:
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Sends SIGTERM to its PID 1 and returns its exit code."""
        subprocess.run([*as_root(), "kill", "-TERM", str(self.pid)], check=True)
        return self.wait(timeout_s)

    def kill(self) -> None:
        if self._process.poll() is None:
            subprocess.run([*as_root(), "kill", f"-{signal.SIGKILL:d}", str(self.pid)], check=False)
            self._process.wait(30)
        watchdog.remove(self._process.pid)


def _make_ours(directory: Path) -> None:
    """Makes the files of containers ours; otherwise pytest could remove them only as root."""
    if os.getuid() != 0:
        subprocess.run([*as_root(), "chown", "-R", f"{os.getuid()}:{os.getgid()}", directory], check=True)


def _innermost(pid: int) -> int:
    """The last process in a chain of only children: sudo, unshare, then the program."""

    def children(of: int) -> list[int]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return [int(word) for word in Path(f"/proc/{of}/task/{of}/children").read_text().split()]
        return []

    while os.path.basename(_program(pid)) in ("sudo", "unshare", "nsenter") and (below := children(pid)):
        pid = below[0]
    return pid


def _program(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    return ""
