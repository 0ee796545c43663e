"""Whether what lies in the working directory may be used without being named: ./config.yaml, and modules of handlers.

Both decide what code runs. No code may come from a directory into which others write, such as an inbox, only because a
user works there. What --config, FILEQ_CONFIG or --app-dir names is never checked: naming it is the decision.
"""

from __future__ import annotations

import os
import stat

_ACL = "system.posix_acl_access"


def untrusted_file(path: str) -> str:
    """Why others can have written this file, which was found by default; "" if only root and this user can."""
    directory = os.path.dirname(os.path.abspath(path))
    # In a directory with the sticky bit, such as /tmp, no one else can replace the file.
    if fault := _fault(directory, is_sticky_allowed=True):
        return fault
    return (_foreign_owner(path, os.lstat(path)) if os.path.islink(path) else "") or _fault(path)


def untrusted_directory(path: str) -> str:
    """Why others can put files into this directory, used by default; "" if only root and this user can."""
    return _fault(os.path.abspath(path))


def _fault(path: str, *, is_sticky_allowed: bool = False) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""  # what can't be looked at can't be read or imported either
    if owner := _foreign_owner(path, status):
        return owner
    if is_sticky_allowed and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"every user can write to {path}"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(path, status):
        return f"the group {_name_of_group(status.st_gid)} can write to {path}"
    return ""


def _foreign_owner(path: str, status: os.stat_result) -> str:
    if status.st_uid in (0, os.geteuid()):
        return ""
    return f"{path} belongs to the {name_of_user(status.st_uid)}"


def _is_own_group(path: str, status: os.stat_result) -> bool:
    """With the umask 002 of many systems what a user makes is writable by a group of which only that user is a member.
    With an access control list the bits of the group are those of every user and group in the list."""
    try:
        os.getxattr(path, _ACL)
    except OSError:
        return status.st_gid in (0, os.getegid()) or _is_private_group(status)
    return False


def _is_private_group(status: os.stat_result) -> bool:
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return user.pw_gid == group.gr_gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def name_of_user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _name_of_group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
