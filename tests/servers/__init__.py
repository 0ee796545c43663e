"""Real servers for tests, on private ports, gone with the test process."""

from tests.servers.cluster import Cluster
from tests.servers.sentinel import Sentinel
from tests.servers.server import PORTS, Server, ServerFailed, available_servers, free_port
from tests.servers.tls import Certificates, make_certificates

__all__ = [
    "PORTS",
    "Certificates",
    "Cluster",
    "Sentinel",
    "Server",
    "ServerFailed",
    "available_servers",
    "free_port",
    "make_certificates",
]
