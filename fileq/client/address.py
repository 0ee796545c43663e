"""Which configuration a client works with: the program's own, a file, or another broker with the program's settings."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from fileq.config import MOVE, Config, load
from fileq.core.errors import ConfigError

REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "redis+cluster://")
SQLITE = "sqlite:"
FILES = (".yaml", ".yml")
_KNOWN = (
    "give redis://host:6379/0, rediss://…, unix://…, sqlite:PATH, http://host:8080 of a server, the path of a .yaml "
    "file, or nothing"
)


def config_at(where: str | Config | None, *, key: str = "", app_dir: str = ".") -> Config:
    """The configuration for Client(where). Raises ConfigError for an address that can't be used."""
    if key:
        raise ConfigError("key is for the address of a server, http://… or https://…; leave it out")
    if isinstance(where, Config):
        return where
    directory = Path(app_dir)
    if where is None:
        config = load(cwd=directory).config
    elif where.endswith(FILES):
        config = load(where, cwd=directory).config
    elif where.startswith(REDIS_SCHEMES):
        config = load(sets=["broker=redis", f"redis.url={where}"], cwd=directory).config
    elif where.startswith(SQLITE) and where != SQLITE:
        config = load(sets=["broker=sqlite", f"sqlite.path={where.removeprefix(SQLITE)}"], cwd=directory).config
    else:
        raise ConfigError(f"{where!r} is no address of a queue; {_KNOWN}")
    return config if app_dir in ("", ".") else _relative_to(config, app_dir)


def _relative_to(config: Config, directory: str) -> Config:
    """The same settings for a process that works in another directory: relative paths begin in this one."""

    def there(path: str) -> str:
        return os.path.abspath(os.path.join(directory, path)) if path else path

    def rule(text: str) -> str:
        return MOVE + there(text.removeprefix(MOVE)) if text.startswith(MOVE) else text

    worker, redis, tls = config.worker, config.redis, config.redis.tls
    tls = replace(tls, **{name: there(getattr(tls, name)) for name in ("ca_file", "cert_file", "key_file")})
    worker = replace(
        worker,
        allowed_roots=tuple(map(there, worker.allowed_roots)),
        path_map={there(one): there(other) for one, other in worker.path_map.items()},
        after=replace(worker.after, completed=rule(worker.after.completed), dead=rule(worker.after.dead)),
    )
    return replace(
        config,
        sqlite=replace(config.sqlite, path=there(config.sqlite.path)),
        redis=replace(redis, password_file=there(redis.password_file), tls=tls),
        worker=worker,
        producer=replace(config.producer, scan_dir=there(config.producer.scan_dir)),
    )
