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
    # Who may replace a directory above it may replace it, too.
    is_root = path == path.parent
    why = None if is_root else _foreign(path.parent)
    if why:
        return why
    status = path.lstat()
    why = foreign_owner(path, status.st_uid)
    if why:
        return why
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)  # noqa: PTH115 (the text as it stands)
        return _foreign(path.parent / target, shared=shared)
    if shared or not _others_may_replace(status):
        return None
    return f"other users may replace what is in {path}"


def _others_may_replace(status: os.stat_result) -> bool:
    """Whether it is a directory in which another user may replace a file of root's or this user's."""
    mode = status.st_mode
    # In a sticky directory such as /tmp, users may write, but replace only what is theirs.
    if not stat.S_ISDIR(mode) or mode & stat.S_ISVTX:
        return False
    if mode & stat.S_IWOTH:
        return True
    is_trusted_group = status.st_gid in SYSTEM_GROUPS or status.st_gid == os.getegid()
    return bool(mode & stat.S_IWGRP) and not is_trusted_group


def foreign_owner(what: Path, uid: int) -> str | None:
    """Why `what`, which belongs to `uid`, is another user's; None if it is root's or this user's."""
    return None if uid in {0, os.geteuid()} else f"{what} belongs to user {uid}"
