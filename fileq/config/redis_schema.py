"""The keys below `redis`: where the server is, how to log in, timeouts."""

from __future__ import annotations

from typing import Annotated

from fileq.config.kinds import AddressKind, KeyNameKind, SecretKind, mask_credentials, split_address
from fileq.config.section import Section
from fileq.config.value_types import REDIS_URL, Count, CountOrZero, Seconds

DEFAULT_PREFIX = "jobqueue"
DEFAULT_ADDRESS = "localhost:6379"


class TlsSettings(Section, frozen=True):
    enabled: Annotated[bool, "encrypt the connection"] = False
    ca_file: Annotated[str, 'file of certificates to trust; "" = those of the system'] = ""
    cert_file: Annotated[str, "file of the client certificate"] = ""
    key_file: Annotated[str, "file of the client certificate's private key"] = ""


class RedisSettings(Section, frozen=True):
    addr: Annotated[str, AddressKind(), "host:port; localhost:6379 with broker: redis and neither addr nor url"] = ""
    url: Annotated[
        str,
        REDIS_URL,
        "redis:// rediss:// unix:// redis+sentinel://h1,h2/master/0 redis+cluster://h1,h2; "
        "overrides addr; username and password override those in the URL",
    ] = ""
    username: Annotated[str, "user name for Redis's access control lists"] = ""
    password: Annotated[str, SecretKind(), "password; prefer password_file or the environment"] = ""
    password_file: Annotated[str, "file that holds the password, instead of password; a change needs no restart"] = ""
    db: Annotated[CountOrZero, "number of the database"] = 0
    prefix: Annotated[str, KeyNameKind(), "prefix of every key name that has no setting of its own"] = DEFAULT_PREFIX
    tls: Annotated[TlsSettings, "encryption; a rediss:// URL enables it too"] = TlsSettings()
    pool_size_multiplier: Annotated[Count, "maximum number of connections = this × CPUs"] = 10
    min_idle_conns: Annotated[CountOrZero, "connections opened at start"] = 5
    dial_timeout: Annotated[Seconds, "maximum wait for a connection"] = 5.0
    read_timeout: Annotated[Seconds, "maximum wait for a reply"] = 3.0
    write_timeout: Annotated[Seconds, "maximum wait until a request is sent"] = 3.0
    max_retries: Annotated[CountOrZero, "retries of calls that are safe to repeat"] = 3

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Host and port of `addr` or of its default. `url` takes precedence over both."""
        return split_address(self.addr or DEFAULT_ADDRESS) or ("localhost", 6379)

    @property
    def location(self) -> str:
        """Where Redis is, without credentials."""
        return mask_credentials(self.url or self.addr or DEFAULT_ADDRESS)
