"""Small files that are there whole or as they were before, also after a crash."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace `path` atomically, on disk when it returns; its folder is made. Raises OSError: nothing has changed."""
    scratch = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
