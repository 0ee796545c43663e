"""Directories that are nested more deeply than Python's own functions can remove."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def nested(top: Path, depth: int, *names: str) -> Iterator[None]:
    """That many directories `d` below `top`, one in the other; the innermost has files of these names. All are removed
    at the end."""
    (top / "d").mkdir(parents=True)
    here = os.open(top / "d", os.O_PATH)
    for _ in range(depth - 1):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    for name in names:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=here))
    os.close(here)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", top / "d"], check=True)
