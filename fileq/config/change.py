"""`config set`: one setting changed in the configuration file, for good.

The new text is checked before it is written, and it takes the old one's place in one step: killed at any moment, the
file is the old one or the new one. What is killed in between may leave `.config.yaml.<random>` beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from fileq.config.edit import edited
from fileq.config.kinds import Secret
from fileq.config.load import load, loaded_from_text
from fileq.config.schema import every_key
from fileq.config.show import Row, to_listing
from fileq.config.sources import DEFAULT_FILE, find_file, parsed_file
from fileq.core.errors import ConfigError

_LINE_NUMBER = re.compile(r":\d+: ")


class Change(Struct, frozen=True):
    """What was written, and what becomes of it."""

    path: str
    is_new_file: bool
    rows: list[Row] = []  # the setting as the file has it now
    overriding: list[Row] = []  # as it is in effect, where the environment or --set says otherwise
    problems: list[str] = []  # what was wrong with the configuration before, and still is
    is_exposed: bool = False  # it holds a secret that every user of the machine can read


def change(
    key: str,
    value: str,
    *,
    path: str | None = None,
    sets: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Change:
    """Write this setting into the file that would be loaded, or into a new ./config.yaml where there is none."""
    directory = Path(cwd or ".")
    found = find_file(path, os.environ if environ is None else environ, directory)
    name = found or DEFAULT_FILE
    # Through links, and locked: two who change different settings must not undo each other's work.
    file = (directory / name).resolve()
    with _alone_in(file.parent, name):
        is_new = not file.exists()
        before = "" if is_new else _read(file, name)
        parsed_file(before.encode(), name)  # what is wrong with it is told with its name
        after = edited(before, key, value)
        known = {_LINE_NUMBER.sub(": ", problem) for problem in _problems(before, name, directory)}
        new = [p for p in _problems(after, name, directory) if _LINE_NUMBER.sub(": ", p) not in known]
        if new:
            raise ConfigError(new)
        is_secret = _holds_secret(key)
        _replace(file, name, after.encode(), is_secret=is_secret)
    is_exposed = is_secret and bool(file.stat().st_mode & stat.S_IROTH)
    try:
        written = to_listing(loaded_from_text(after, name, directory), key)
        in_effect = to_listing(load(name, sets, environ, directory), key)
    except ConfigError as error:
        return Change(name, is_new, problems=list(error.problems), is_exposed=is_exposed)
    overriding = [row for row in in_effect if row.origin.layer in ("env", "--set")]
    return Change(name, is_new, written, overriding, is_exposed=is_exposed)


def _problems(text: str, name: str, cwd: Path) -> list[str]:
    try:
        loaded_from_text(text, name, cwd)
    except ConfigError as error:
        return list(error.problems)
    return []


def _holds_secret(key: str) -> bool:
    return any(isinstance(k.shape, Secret) for path, k in every_key().items() if f"{path}.".startswith(f"{key}."))


def _read(file: Path, name: str) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not a text in UTF-8") from None


@contextlib.contextmanager
def _alone_in(directory: Path, name: str) -> Iterator[None]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(file: Path, name: str, content: bytes, *, is_secret: bool) -> None:
    """With the owner and the rights of the file before it; a new one that holds a password is for its owner only."""
    try:
        old = os.stat(file)
    except FileNotFoundError:
        old = None
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}; see the rights of its directory") from error
    try:
        with open(fd, "wb") as opened:
            if old is not None:
                with contextlib.suppress(PermissionError):  # only root may give files away
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, old.st_mode & 0o7777)
            elif not is_secret:
                os.fchmod(fd, 0o666 & ~_umask())
            opened.write(content)
            opened.flush()
            os.fsync(fd)
        os.rename(temporary, file)
    except OSError as error:
        os.unlink(temporary)
        raise ConfigError(f"{name} cannot be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
