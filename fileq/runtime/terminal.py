"""A progress line at the bottom of a terminal. It shows the text it is given and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[str], None]


@contextmanager
def live_line(text: str) -> Iterator[tuple[Show, bool]]:
    """Yields a function that changes the line, and whether there is one: only if stderr is a terminal.

    The line disappears at the end."""
    if not sys.stderr.isatty():
        yield lambda text: None, False
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    # Long text is wrapped, not cut: its end often explains the rest. Some columns stay free, because the "^C" that the
    # terminal echoes would otherwise wrap and leave a stale line behind.
    room = Column(no_wrap=False, max_width=max(20, console.width - 16))
    words = TextColumn("{task.description}", markup=False, table_column=room)
    with Progress(SpinnerColumn(), TimeElapsedColumn(), words, console=console, transient=True) as bar:
        task = bar.add_task(text)
        yield lambda text: bar.update(task, description=text), True
