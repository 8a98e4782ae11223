"""Small files that are replaced atomically, also in a crash."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str, *, on_disk: bool = True) -> None:
    """Replace `path` atomically; its folder is made. Raises OSError: the file is still whole.

    With `on_disk`, it is on disk when this returns. Without, only other processes see it for certain.

    Only this user may read it. The scratch file is new under a name that cannot be guessed, so no link that another
    user left there is followed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a file can be renamed only within a file system.
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    scratch = Path(name)
    try:
        with open(number, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor, not a path)
            file.write(text)
            file.flush()
            if on_disk:
                os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    if on_disk:
        # Without it, the new file may be on disk, and its name still be the former file's.
        _sync(path.parent)


def _sync(folder: Path) -> None:
    """Write the names in `folder` to disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
