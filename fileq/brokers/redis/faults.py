"""The client library's errors as fileq's: unavailable (the same call may succeed later) or refused.

Owns the list of replies that mean "not now". A message never contains a password.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from redis import exceptions

from fileq.core.errors import BrokerError, BrokerUnavailable

# Replies that describe the state of the server. None of them is a failure of a job.
AWAY = (
    *("LOADING", "READONLY", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"),
    *("UNBLOCKED", "NOAUTH", "WRONGPASS", "ERR max number of clients", "max number of clients", "FAILOVER"),
    "Protocol error: unauthenticated",  # in place of NOAUTH when a call has more than ten arguments
)
_AWAY_TYPES = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.NoScriptError,  # the server lost the scripts again right after they were loaded
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.AskError,  # also MOVED: a hash slot migrates to another node
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,  # no node of the cluster answers
    exceptions.InvalidResponse,
    OSError,
)
DRIVER_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
_IN_SCRIPT = re.compile(r" script: ([0-9a-f]{40}, )?on @user_script:\d+\.$")  # means nothing to an operator
_OBJECTS = re.compile(r" : <redis[.].*", re.DOTALL)  # the library's list of Sentinel objects that know no master


def translate(error: Exception, where: str, command: str = "") -> BrokerError:
    """The client library's error as one of fileq's. `command` names the refused command and its key, because the text
    of Redis does not."""
    text = _OBJECTS.sub("; no Sentinel knows it", _IN_SCRIPT.sub("", str(error)))
    if isinstance(error, exceptions.InvalidResponse):
        text = f"the server there does not speak Redis's protocol ({text})"
    if isinstance(error, _AWAY_TYPES) or text.startswith(AWAY):
        return BrokerUnavailable(f"Redis at {where} is unavailable: {text or type(error).__name__}")
    if isinstance(error, exceptions.NoPermissionError) or text.startswith("NOPERM"):
        return BrokerError(f"Redis at {where} forbids {command or 'it'}: {text}; see the README's list of permissions")
    return BrokerError(f"Redis at {where} refused {command or 'it'}: {text}")


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, where) from error
