"""Attackers with thousands of connections need as many open files."""

import resource
from collections.abc import Sequence


def open_files(wanted: int) -> int:
    """So many open files, or as many as this machine lets a process have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)


def with_files(files: int, command: Sequence[str]) -> list[str]:
    """The command, with this limit of open files. Not by `preexec_fn`, which forks this process with its threads."""
    return ["prlimit", f"--nofile={files}", *command]
