"""Installs the peers into a cache directory: a virtual environment from peers.txt, node modules from package.json.

An installation is complete when its stamp exists, and is repeated when the pinned versions change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
REQUIREMENTS = BENCHMARKS / "peers.txt"
PACKAGE = BENCHMARKS / "package.json"


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fileq-bench"


def installed_peers(cache: Path) -> Path:
    """The virtual environment of the Python peers."""
    environment = cache / f"python-{_digest(REQUIREMENTS)}"
    if not (environment / "installed").exists():
        print(f"installing the Python peers into {environment}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", str(REQUIREMENTS)], check=True)
        (environment / "installed").touch()
    return environment


def installed_bullmq(cache: Path) -> Path | None:
    """The directory of BullMQ's modules; None without node or npm, or if npm can't install them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None
    directory = cache / f"node-{_digest(PACKAGE)}"
    if not (directory / "installed").exists():
        print(f"installing BullMQ into {directory}", file=sys.stderr, flush=True)
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE, directory)
        npm = ["npm", "install", "--no-package-lock", "--no-fund", "--no-audit", "--ignore-scripts", "--loglevel=error"]
        if subprocess.run(npm, cwd=directory, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            return None
        (directory / "installed").touch()
    return directory


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes() + sys.version.encode()).hexdigest()[:12]
