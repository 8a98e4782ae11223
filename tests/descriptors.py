"""Descriptors of this process that a test can call its own: threads of other tests open and close others meanwhile."""

import os
from contextlib import suppress
from pathlib import Path


def descriptors_below(directory: Path) -> list[str]:
    """The paths at or below `directory` that this process has open, one for each descriptor."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile
            path = os.readlink(f"/proc/self/fd/{number}")
            if Path(path).is_relative_to(directory):
                paths.append(path)
    return paths
