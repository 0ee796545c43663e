"""Removes abandoned uploads now and then, in a thread of its own: at the start of a server, then every EVERY_S.

What a kill -9 leaves: nothing of its own. The next server goes on.
"""

from __future__ import annotations

import os
import threading
import time

from fileq.core.events import Emit, UploadsRemoved
from fileq.files.uploads import remove_abandoned

EVERY_S = 3600.0


class UploadSweep:
    """Does nothing without a directory."""

    def __init__(self, directory: str, emit: Emit) -> None:
        self._directory = directory
        self._emit = emit
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload sweep", daemon=True)

    def start(self) -> None:
        if self._directory:
            self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            count = remove_abandoned(os.fsencode(self._directory), time.time(), self._is_stopping.is_set)
            if count:
                self._emit(UploadsRemoved(count, self._directory))
            self._is_stopping.wait(EVERY_S)
