"""The errors of connections and servers as fileq's: unavailable (the same call may succeed later) or refused.

Owns the list of replies that mean "not now". A message never contains a password.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from hiredis import ProtocolError

from fileq.brokers.redis.connection import ReplyError
from fileq.core.errors import BrokerError, BrokerUnavailable

# Replies that describe the state of the server. None of them is a failure of a job.
AWAY = (
    *("LOADING", "READONLY", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"),
    *("UNBLOCKED", "NOAUTH", "WRONGPASS", "max number of clients", "FAILOVER"),
    "NOSCRIPT",  # the server lost the scripts again right after they were loaded
    *("MOVED", "ASK"),  # a hash slot migrates to another node
    "Protocol error: unauthenticated",  # in place of NOAUTH when a call has more than ten arguments
)
DRIVER_ERRORS = (ReplyError, ProtocolError, OSError)
_IN_SCRIPT = re.compile(r" script: ([0-9a-f]{40}, )?on @user_script:\d+\.$")  # means nothing to an operator


def translate(error: Exception, where: str, command: str = "a command") -> BrokerError:
    """One of DRIVER_ERRORS as one of fileq's. `command` names the refused command and its key, because the text of
    Redis does not."""
    text = _IN_SCRIPT.sub("", error.strerror or str(error) if isinstance(error, OSError) else str(error))
    if isinstance(error, ProtocolError):
        text = f"the server there does not speak Redis's protocol ({text})"
    if not isinstance(error, ReplyError) or text.startswith(AWAY):
        return BrokerUnavailable(f"Redis at {where} is unavailable: {text or type(error).__name__}")
    if text.startswith("NOPERM"):
        return BrokerError(f"Redis at {where} forbids {command}: {text}; docs/redis.md lists what it needs")
    return BrokerError(f"Redis at {where} refused {command}: {text}")


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, where) from error
