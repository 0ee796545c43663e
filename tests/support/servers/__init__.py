"""Real servers for tests, on private ports, gone with the test process."""

from tests.support.servers.cluster import Cluster
from tests.support.servers.sentinel import Sentinel
from tests.support.servers.server import PORTS, Server, ServerFailed, available_servers, free_port
from tests.support.servers.tls import Certificates, make_certificates

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
