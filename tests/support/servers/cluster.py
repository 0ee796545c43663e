"""Three masters that share the hash slots; no replicas."""

import contextlib
import itertools
from typing import Any, Self

import redis
from redis.cluster import ClusterNode, RedisCluster

from tests.support.servers.server import HOST, Server
from tests.support.waiting import wait_until

SLOTS = 16_384


class Cluster:
    def __init__(self, binary: str, *, nodes: int = 3) -> None:
        self._stack = contextlib.ExitStack()
        self._clients: list[RedisCluster] = []
        self._count = nodes
        self.binary = binary
        self.nodes: list[Server] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.nodes = [
                stack.enter_context(Server(self.binary, cluster_enabled=True, cluster_node_timeout=5000))
                for _ in range(self._count)
            ]
            self._join()
            wait_until(self.is_settled, 30, "cluster_state:ok on every node")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.close_clients()
        self._stack.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(HOST, node.port) for node in self.nodes]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(node.address for node in self.nodes)

    def client(self, **options: Any) -> RedisCluster:
        client = RedisCluster(startup_nodes=[ClusterNode(*address) for address in self.addresses], **options)
        self._clients.append(client)
        return client

    def node_of(self, key: str) -> Server:
        """The node that serves the hash slot of `key`."""
        with contextlib.closing(self.nodes[0].client()) as client:
            slot = client.execute_command("CLUSTER", "KEYSLOT", key)
        return next(node for node, (_, last) in zip(self.nodes, self._ranges(), strict=True) if slot <= last)

    def is_settled(self) -> bool:
        if not all(node.is_running for node in self.nodes):
            return False
        with contextlib.suppress(redis.RedisError):
            return all(map(self._is_ok, self.nodes))
        return False

    def is_usable(self) -> bool:
        return self.is_settled()

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(server.log_tail(lines) for server in self.nodes)

    def reset(self) -> None:
        """Empties every node and removes its scripts."""
        self.close_clients()
        for node in self.nodes:
            with contextlib.closing(node.client()) as client:
                client.execute_command("FLUSHALL", "SYNC")
                client.execute_command("SCRIPT", "FLUSH", "SYNC")

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()
        for node in self.nodes:
            node.close_clients()

    def _join(self) -> None:
        for epoch, (node, slots) in enumerate(zip(self.nodes, self._ranges(), strict=True), start=1):
            with contextlib.closing(node.client()) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
                # Distinct epochs from the start: nodes with equal epochs need a long time to agree.
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
                if node is not self.nodes[0]:
                    client.execute_command("CLUSTER", "MEET", HOST, self.nodes[0].port)

    def _ranges(self) -> list[tuple[int, int]]:
        edges = [SLOTS * i // self._count for i in range(self._count + 1)]
        return [(first, after - 1) for first, after in itertools.pairwise(edges)]

    def _is_ok(self, node: Server) -> bool:
        with contextlib.closing(node.client()) as client:
            lines = client.execute_command("CLUSTER", "INFO").splitlines()
        return b"cluster_state:ok" in lines and b"cluster_known_nodes:%d" % self._count in lines
