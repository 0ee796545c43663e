"""The address of a server, as a program gives it to Client: http://host:8080 or https://host/path."""

from __future__ import annotations

from msgspec import Struct

from fileq.core.errors import ConfigError

HTTP_SCHEMES = ("http://", "https://")
API = "/api/v1"
_EXAMPLE = "give http://host:8080 or https://host"


class ServerAddress(Struct, frozen=True):
    """`path` is that of the API. The key is no part of what is shown."""

    is_https: bool
    host: str
    port: int
    path: str
    key: str

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_https else 'http'}://{host}:{self.port}{self.path.removesuffix(API)}"


def server_address(where: str, key: str) -> ServerAddress:
    """ConfigError for an address or a key that can't be used. Its message never has the key."""
    from urllib.parse import urlsplit  # not needed by a program that uses a broker

    try:
        parts = urlsplit(where)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{where!r} is no address of a server: {error}; {_EXAMPLE}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the address of the server has a user or a password; leave them out and give key=…")
    if not host or parts.query or parts.fragment or any(char <= " " or char > "~" for char in where):
        raise ConfigError(f"{where!r} is no address of a server; {_EXAMPLE}")
    if not key:
        raise ConfigError("key is missing; give key=…, which `fileq keys create` makes")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError("key has characters that no key has; give it as `fileq keys create` printed it")
    is_https = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix(API)
    return ServerAddress(is_https, host, port or (443 if is_https else 80), f"{base}{API}", key)
