"""Where the queue of a client is: a configuration (the program's own, a file, or another broker with the program's
settings), or the address of a server."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fileq.config import Config, load
from fileq.config.value_types import MOVE
from fileq.core.errors import ConfigError

REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "redis+cluster://")
SQLITE = "sqlite:"
FILES = (".yaml", ".yml")
_KNOWN = (
    "give redis://host:6379/0, rediss://…, unix://…, sqlite:PATH, http://host:8080 of a server, the path of a .yaml "
    "file, or nothing"
)
HTTP_SCHEMES = ("http://", "https://")
API = "/api/v1"
_EXAMPLE = "give http://host:8080 or https://host"


def config_at(where: str | Config | None, *, key: str = "", app_dir: str = ".") -> Config:
    """The configuration for Client(where). Raises ConfigError for an address that can't be used."""
    if key:
        raise ConfigError("key is only for server addresses, http://… or https://…; leave it out")
    if isinstance(where, Config):
        return where
    if where is not None and not isinstance(where, str):
        raise TypeError(f"where is {where!r:.100}; {_KNOWN}")
    directory = Path(app_dir)
    if where is None:
        config = load(cwd=directory).config
    elif where.endswith(FILES):
        if not (directory / where).exists():
            raise ConfigError(f"the configuration file {where!r} does not exist; {_KNOWN}")
        config = load(where, cwd=directory).config
    elif where.startswith(REDIS_SCHEMES):
        config = load(sets=["broker=redis", f"redis.url={where}"], cwd=directory).config
    elif where.startswith(SQLITE) and (path := where.removeprefix(SQLITE)):
        if path.startswith("//"):  # which other programs read as a relative path, and the system as an absolute one
            name = path.lstrip("/")
            advice = f"give {SQLITE}{name}, relative to the working directory, or {SQLITE}/{name}"
            raise ConfigError(f"{where!r} is not a queue address; {advice}")
        config = load(sets=["broker=sqlite", f"sqlite.path={path}"], cwd=directory).config
    else:
        raise ConfigError(f"{where!r} is not a queue address; {_KNOWN}")
    return config if app_dir in ("", ".") else _relative_to(config, app_dir)


def new_database_warning(where: str | None, config: Config, app_dir: str) -> str:
    """For a client that may have been started in a wrong directory; "" if it was given an address."""
    if where is not None and not where.endswith(FILES):
        return ""
    loaded = replace(load(where, cwd=Path(app_dir)), config=config)
    return loaded.new_database_warning("give its address, app_dir or FILEQ_CONFIG", directory=app_dir)


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


class ServerAddress(Struct, frozen=True):
    """http://host:8080 or https://host/path. `path` is that of the API. The key is no part of what is shown."""

    is_https: bool
    host: str
    port: int
    path: str
    key: str

    def __repr__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_https else 'http'}://{host}:{self.port}{self.path.removesuffix(API)}"


def server_address(where: str, key: str) -> ServerAddress:
    """ConfigError for an address or a key that can't be used. Its message never has the key."""
    from urllib.parse import urlsplit  # not needed by a program that uses a broker

    try:
        parts = urlsplit(where)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{where!r} is not a server address: {error}; {_EXAMPLE}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the server address has a user name or password; remove them and give key=…")
    if not host or parts.query or parts.fragment or any(char <= " " or char > "~" for char in where):
        raise ConfigError(f"{where!r} is not a server address; {_EXAMPLE}")
    if not key:
        raise ConfigError("key is missing; give key=…, which `fileq keys create` prints")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError("key has characters that keys never have; give it exactly as `fileq keys create` printed it")
    is_https = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix(API)
    return ServerAddress(is_https, host, port or (443 if is_https else 80), f"{base}{API}", key)
