"""Says why a directory can't be used: it is missing, is something else, or its permissions refuse this user.

It is tried, not computed from modes: access lists and network file systems decide otherwise than modes say.
"""

from __future__ import annotations

import os

MISSING, NOT_A_DIRECTORY = "does not exist", "is not a directory"


def directory_problem(path: bytes, *, is_listed: bool = False) -> str:
    """Why nothing below the directory can be opened, or with `is_listed` why it can't be listed; "" if it can. The text
    continues a sentence that begins with its name. May block: the directory may be on a network file system."""
    inside = os.path.join(path, b".")  # needs the permission to enter the directory, which a stat of itself does not
    try:
        os.stat(inside)
        if is_listed:
            os.close(os.open(inside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except FileNotFoundError:
        return NOT_A_DIRECTORY if os.path.lexists(path) else MISSING
    except NotADirectoryError:
        return NOT_A_DIRECTORY
    except PermissionError:
        return f"can't be accessed: this user has no permission on {os.fsdecode(_refusing(path))}"
    except OSError as error:
        return f"can't be accessed: {error.strerror}"
    return ""


def advice_for(problem: str) -> str:
    """What helps against such a problem, if it is not another name."""
    if problem in (MISSING, NOT_A_DIRECTORY):
        return "create it"
    return "give this user the permissions r and x on it, and x on the directories above it"


def _refusing(path: bytes) -> bytes:
    """The first directory on the way that does not let this user in; the path itself if all do."""
    names = os.path.abspath(path).split(b"/")
    for count in range(1, len(names) + 1):
        above = b"/".join(names[:count]) or b"/"
        try:
            os.stat(os.path.join(above, b"."))
        except PermissionError:
            return above
        except OSError:
            break
    return path
