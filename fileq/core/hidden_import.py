"""Imports a library without an optional part of it that is slow to import and that fileq does not use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(module: str) -> Iterator[None]:
    """While it lasts, an import of this module fails, unless it was imported before: then it costs nothing and stays.

    None in sys.modules makes an import fail. Not for use with other threads running: their import would fail too."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
