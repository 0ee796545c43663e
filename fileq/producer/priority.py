"""Which priority a file gets by its name. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from fileq.config import Config


def priority_chooser(config: Config) -> Callable[[bytes], str]:
    """A function from a path to its priority, which is also the name of its queue."""
    high_exts = tuple(ext.casefold() for ext in config.producer.high_priority_exts)
    high, other = config.high_priority, config.producer.default_priority
    return lambda path: high if path.decode(errors="replace").casefold().endswith(high_exts) else other
