"""Whose commands are these? Running a queue's jobs means trusting whoever can write to it."""

from __future__ import annotations

import os
import stat

from spoolctl.core.paths import support_dir
from spoolctl.errors import Untrusted


def check_trust(db_path: str) -> None:
    """Refuse a queue that another user owns or could write to.

    Looks at the file, its folder and the support folder (access control lists show up in
    the group bits), and at the link that the support folder may be: a stranger could have
    laid one to a folder of ours. A folder that others may write to counts unless it is sticky.

    Raises:
        Untrusted: with the reason in words.
    """
    for path in (db_path, os.path.dirname(db_path), support_dir(db_path)):
        for look in (os.lstat, os.stat):
            try:
                found = look(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            reason = _distrust(path, found, os.geteuid())
            if reason:
                raise Untrusted(db_path, reason)


def _distrust(path: str, found: os.stat_result, me: int) -> str | None:
    """Why this file or folder cannot be trusted; None if it can."""
    is_dir = stat.S_ISDIR(found.st_mode)
    sticky = is_dir and found.st_mode & stat.S_ISVTX
    if found.st_uid != me and not (is_dir and found.st_uid == 0):
        # A folder of root's (/tmp, /var/spool) is no other user's than the system's.
        return f"{path} belongs to user id {found.st_uid}"
    if sticky or stat.S_ISLNK(found.st_mode):  # a link has no permissions of its own
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"{path} can be written by every user"
    if found.st_mode & stat.S_IWGRP and not _private_group(found.st_gid):
        return f"{path} can be written by group id {found.st_gid}"
    return None


def _private_group(gid: int) -> bool:
    """Whether nobody but us is in this group (the usual umask 002 set-up gives each user one).

    Root's own group counts: who is in it could be root anyway.
    """
    import grp
    import pwd

    if gid == 0:
        return True
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
