"""Environment variables that are not named after a setting: those that other job servers use, those that Kubernetes
sets, and names of settings that are probably misspelt. Misspelt ones are warned of, and never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fileq.config.value_types import split_address

# Those of other job servers, and the settings that they set here; docs/settings.md lists them. They have no prefix. The
# setting's own variable has precedence, also without FILEQ_.
FOREIGN_VARIABLES: Mapping[str, str] = {
    "PORT": "server.port",
    "API_KEY": "server.api_key",
    "DASHBOARD_ENABLED": "server.console",
    "DASHBOARD_USERNAME": "server.username",
    "DASHBOARD_PASSWORD": "server.password",
    "WORKER_CONCURRENCY": "worker.count",
    "JOB_DEFAULT_TIMEOUT": "worker.timeout",
    "JOB_DEFAULT_MAX_RETRIES": "worker.max_retries",
    "JOB_DEFAULT_RETRY_DELAY": "worker.backoff.base",
}
_SECONDS = ("JOB_DEFAULT_TIMEOUT", "JOB_DEFAULT_RETRY_DELAY")


def in_our_spelling(name: str, text: str) -> str:
    """The value of a variable as the setting spells it: a number of seconds gets its unit, host:port its scheme."""
    if name in _SECONDS and text.isascii() and text.isdecimal():
        return f"{text}s"
    if name.endswith("REDIS_URL") and "/" not in text and split_address(text) is not None:
        return f"redis://{text}"
    return text


# Kubernetes describes each service of a namespace in the environment of a pod: for a service named `fileq-worker`
# FILEQ_WORKER_SERVICE_HOST, FILEQ_WORKER_SERVICE_PORT, FILEQ_WORKER_PORT (a URL) and FILEQ_WORKER_PORT_9090_TCP_ADDR.
_OF_A_SERVICE = re.compile(r"\w+_SERVICE_(HOST|PORT\w*)|\w+_PORT_\d+_(TCP|UDP|SCTP)\w*")
_URL_OF_A_SERVICE = re.compile(r"(tcp|udp|sctp)://")
_SIMILAR = 0.8


def describes_a_service(variable: str, value: str) -> bool:
    """Whether Kubernetes may have set this variable."""
    return bool(_OF_A_SERVICE.fullmatch(variable) or _URL_OF_A_SERVICE.match(value))


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """The one name that ends with this one, such as PRODUCER_SCAN_DIR for SCAN_DIR; else one that is spelled similarly.

    None for a name that is not similar to a known one. Names are without FILEQ_."""
    import difflib

    known = list(known)
    in_a_section = [one for one in known if "_" in name and one.endswith(f"_{name}")]
    if len(in_a_section) == 1:
        return in_a_section[0]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)), None)
