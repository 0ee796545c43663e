"""What a terminal needs: a line that moves while something is under way, and text that it does not obey.

Shows what it is told, and knows nothing of what that means."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[str], None]


@contextmanager
def live_line(text: str) -> Iterator[tuple[Show, bool]]:
    """What changes the line's text, and whether there is a line: on a terminal only. It is gone afterwards."""
    if not sys.stderr.isatty():
        yield lambda text: None, False
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    # Wrapped, not cut: what does not fit is often what explains the rest. A little is kept free at the end: the ^C that
    # the terminal shows would start another line, and the first of ours would stay behind.
    room = Column(no_wrap=False, max_width=max(20, console.width - 16))
    words = TextColumn("{task.description}", markup=False, table_column=room)
    with Progress(SpinnerColumn(), TimeElapsedColumn(), words, console=console, transient=True) as bar:
        task = bar.add_task(text)
        yield lambda text: bar.update(task, description=text), True
