"""The nearest known key for one that is not known."""

from __future__ import annotations

from collections.abc import Iterable

from fileq.config.schema import every_key


def unknown_key(path: str, siblings: Iterable[str] | None = None) -> str:
    """One line that names the key and the one that was probably meant.

    `siblings` are the full paths of the keys that are known beside it.
    """
    known = list(every_key())
    if path in known:
        *sections, leaf = path.split(".")
        return f"unknown key {path!r}; write it nested: {''.join(f'{section}: {{' for section in sections)}{leaf}: …"
    if siblings is None:
        parent = path.rpartition(".")[0]
        siblings = [name for name in known if name.rpartition(".")[0] == parent]
    siblings = list(siblings)
    if meant := _nearest(path, siblings, known):
        return f"unknown key {path!r}; did you mean {meant!r}?"
    beside = ", ".join(name.rpartition(".")[2] for name in siblings) or ", ".join(n for n in known if "." not in n)
    return f"unknown key {path!r}; known here: {beside}"


def _nearest(path: str, siblings: list[str], known: list[str]) -> str | None:
    """The same key in another section, else a sibling with a slip of the pen, else whatever looks alike."""
    import difflib

    leaves = {name.rpartition(".")[2].lower(): name for name in siblings}
    leaf = path.rpartition(".")[2].lower()
    if moved := [name for name in known if name.rpartition(".")[2] == leaf]:
        return max(moved, key=lambda name: difflib.SequenceMatcher(None, path, name).ratio())
    if close := difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6):
        return leaves[close[0]]
    # With siblings to choose from, what resembles only the whole path resembles only the section.
    return next(iter(difflib.get_close_matches(path, () if siblings else known, n=1, cutoff=0.7)), None)
