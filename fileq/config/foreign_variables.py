"""Environment variables that other job servers use, and the settings that they set here. docs/settings.md lists them.

They have no prefix. The setting's own variable has precedence, also without FILEQ_.
"""

from __future__ import annotations

from collections.abc import Mapping

from fileq.config.kinds import split_address

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
