"""A master, its replica and the sentinels that watch them."""

import contextlib
from typing import Any, ClassVar, Self

import redis

from tests.support.servers.server import HOST, Directive, Server
from tests.support.waiting import wait_until

MASTER_NAME = "mymaster"
# By default a sentinel checks every 10 s, and a test would wait half a minute for a failover. The ping period stays:
# it also limits how old the data of a replica may be when it is promoted.
_SHORT_PERIODS = {"info_period": 100, "ask_period": 100}


class SentinelServer(Server):
    arguments: ClassVar[tuple[str, ...]] = ("--sentinel",)
    defaults: ClassVar[dict[str, Directive]] = {"protected_mode": False}


class Sentinel:
    """`sentinel.addresses` and `sentinel.master_name` are what a client is configured with."""

    master_name = MASTER_NAME

    def __init__(self, binary: str, *, sentinels: int = 3, down_after_ms: int = 2000) -> None:
        self._stack = contextlib.ExitStack()
        self.binary = binary
        self.sentinels: list[SentinelServer] = []
        self.nodes: list[Server] = []
        self._count = sentinels
        self._down_after_ms = down_after_ms

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            first = stack.enter_context(Server(self.binary))
            second = stack.enter_context(Server(self.binary, replicaof=f"{HOST} {first.port}"))
            self.nodes = [first, second]
            for _ in range(self._count):
                self.sentinels.append(stack.enter_context(SentinelServer(self.binary, sentinel=self._rules(first))))
            self._set_periods(**_SHORT_PERIODS)
            self._wait_settled()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{MASTER_NAME}/0"

    @property
    def master(self) -> Server:
        """The node that the first running sentinel names as master."""
        port = self._master_port(next(s for s in self.sentinels if s.is_running))
        return next(node for node in self.nodes if node.port == port)

    @property
    def replica(self) -> Server:
        return next(node for node in self.nodes if node is not self.master)

    def client(self, **options: Any) -> redis.Redis:
        """A plain client of the current master; it does not follow a failover."""
        return self.master.client(**options)

    def failover(self) -> None:
        """Makes the replica the master; returns when all sentinels agree and the old master follows the new."""
        before = self.master
        with contextlib.closing(self.sentinels[0].client()) as client:
            client.execute_command("SENTINEL", "FAILOVER", MASTER_NAME)
        wait_until(lambda: all(self._master_port(s) != before.port for s in self.sentinels), 20, "failed over")
        self._wait_settled()

    def wait_failed_over(self, before: Server, timeout_s: float = 30) -> None:
        """Waits until the sentinels have replaced `before`, which a test has killed or paused."""
        wait_until(
            lambda: self.master is not before and self._role(self.master)[0] == "master", timeout_s, "failed over"
        )

    def is_settled(self) -> bool:
        """All agree on one master, know the replica, and it has caught up."""
        if not all(server.is_running for server in [*self.nodes, *self.sentinels]):
            return False
        with contextlib.suppress(redis.RedisError):
            master = self.master
            agreed = all(self._master_port(sentinel) == master.port for sentinel in self.sentinels)
            return agreed and all(map(self._sees_all, self.sentinels)) and self._is_synced(master)
        return False

    def is_usable(self) -> bool:
        return self.is_settled()

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(server.log_tail(lines) for server in [*self.nodes, *self.sentinels])

    def reset(self) -> None:
        """Empties the master; the failovers of earlier tests stay."""
        self.close_clients()
        with contextlib.closing(self.client()) as client:
            client.execute_command("FLUSHALL", "SYNC")
            client.execute_command("SCRIPT", "FLUSH", "SYNC")
            client.execute_command("WAIT", 1, 5000)

    def close_clients(self) -> None:
        for server in [*self.nodes, *self.sentinels]:
            server.close_clients()

    def _wait_settled(self) -> None:
        # Sentinels find each other and demote an old master within a few publish periods. They also undo a promotion
        # that was not published within four periods, so the period is short only while nothing is promoted.
        self._set_periods(publish_period=100)
        wait_until(self.is_settled, 20, "the sentinels agree on a master and its replica")
        self._set_periods(publish_period=2000)

    def _set_periods(self, **periods_ms: int) -> None:
        words = [word for name, ms in periods_ms.items() for word in (name.replace("_", "-"), ms)]
        for sentinel in self.sentinels:
            with contextlib.closing(sentinel.client()) as client:
                client.execute_command("SENTINEL", "DEBUG", *words)

    def _rules(self, master: Server) -> list[str]:
        quorum = self._count // 2 + 1
        return [
            f"monitor {MASTER_NAME} {HOST} {master.port} {quorum}",
            f"down-after-milliseconds {MASTER_NAME} {self._down_after_ms}",
            f"failover-timeout {MASTER_NAME} 3000",
        ]

    def _sees_all(self, sentinel: Server) -> bool:
        with contextlib.closing(sentinel.client()) as client:
            (state,) = [m for m in client.sentinel_masters().values() if m["name"] == MASTER_NAME]
            replicas = client.sentinel_slaves(MASTER_NAME)
        return (
            state["flags"] == "master"
            and state["num-other-sentinels"] == self._count - 1
            and any(r["flags"] == "slave" and r["master-link-status"] == "ok" for r in replicas)
        )

    def _is_synced(self, master: Server) -> bool:
        others = [self._role(node) for node in self.nodes if node is not master]
        return self._role(master)[0] == "master" and all(
            role[0] == "slave" and role[2] == master.port and role[3] == "connected" for role in others
        )

    def _master_port(self, sentinel: Server) -> int:
        with contextlib.closing(sentinel.client()) as client:
            address = client.sentinel_get_master_addr_by_name(MASTER_NAME)
        return int(address[1])

    @staticmethod
    def _role(node: Server) -> list[Any]:
        with contextlib.closing(node.client()) as client:
            return [part.decode() if isinstance(part, bytes) else part for part in client.execute_command("ROLE")]
