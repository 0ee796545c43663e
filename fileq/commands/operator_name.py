"""Who works on this machine: the name that notes, the audit and the sessions of a one-time link show to others."""

from __future__ import annotations

import getpass
import socket


def os_user() -> str:
    """The name of the user of this process. The system may know none, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "an unknown user"


def command_line_user() -> str:
    return f"{os_user()} on {socket.gethostname()}, command line"
