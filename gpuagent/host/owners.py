"""Owners of paths: the agent trusts root and its own user, and no other user of the host."""

import os
import stat
from pathlib import Path

SYSTEM_GROUPS = frozenset(range(1000)) - {100}
"""Groups of the distribution's own programs, such as Ubuntu's ``syslog``, which may write in /var/log.

Without group 100, ``users``, which has people as members.
"""


def foreign(path: Path, *, shared: bool = False) -> str | None:
    """Why another user could have put `path` there, or could replace it; None if only root and this user could.

    A link counts by its own place and by its target's.

    Args:
        path: absolute.
        shared: others may write in the directory `path`, if they cannot replace it.

    Raises:
        OSError: it does not exist, or its links form a loop.
    """
    path.stat()
    return _foreign(path, shared=shared)


def _foreign(path: Path, *, shared: bool = False) -> str | None:
    if path != path.parent and (why := _foreign(path.parent)):
        return why
    found = path.lstat()
    if why := foreign_owner(path, found.st_uid):
        return why
    if stat.S_ISLNK(found.st_mode):
        return _foreign(path.parent / os.readlink(path), shared=shared)  # noqa: PTH115 (the text as it stands)
    trusted = found.st_gid in SYSTEM_GROUPS or found.st_gid == os.getegid()
    writers = found.st_mode & (stat.S_IWOTH | (0 if trusted else stat.S_IWGRP))
    if stat.S_ISDIR(found.st_mode) and writers and not (shared or found.st_mode & stat.S_ISVTX):
        return f"other users may replace what is in {path}"
    return None


def foreign_owner(what: Path, uid: int) -> str | None:
    """Why `what`, which belongs to `uid`, is another user's; None if it is root's or this user's."""
    return None if uid in {0, os.geteuid()} else f"{what} belongs to user {uid}"
