"""The thread that reports changes of due times ends with its connection, however that ended."""

import socket
import threading

from fileq.brokers.redis.due_watch import _Reporter
from tests.support.waiting import wait_until


def test_a_reporter_ends_although_its_connection_is_closed_already() -> None:
    before = threading.active_count()
    connection, other = socket.socketpair()
    with other:
        reporter = _Reporter(connection.fileno(), lambda: None)
        connection.close()
        reporter.close()
    wait_until(lambda: threading.active_count() == before)
