"""The systems that can be measured."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.systems.bullmq import bullmq_systems
from benchmarks.systems.fileq import fileq_systems
from benchmarks.systems.install import installed_bullmq, installed_peers
from benchmarks.systems.peers import peer_systems
from benchmarks.systems.system import System

UNINSTALLED = Path("/nowhere")


def all_systems() -> list[System]:
    """Every system, for names and settings; nothing is installed, so peers can't be started."""
    return [*fileq_systems(), *peer_systems(UNINSTALLED), *bullmq_systems("node", UNINSTALLED)]


def installed(chosen: list[System], cache: Path) -> list[System]:
    """The same systems, ready to start. BullMQ is left out where node or npm is missing."""
    names = {system.name for system in chosen}
    ready = fileq_systems()
    on_node = {system.name for system in bullmq_systems("node", UNINSTALLED)}
    if any(not system.is_fileq and system.name not in on_node for system in chosen):
        ready += peer_systems(installed_peers(cache))
    if not on_node.isdisjoint(names) and (modules := installed_bullmq(cache)) is not None:
        ready += bullmq_systems(shutil.which("node") or "node", modules)
    return [system for system in ready if system.name in names]
