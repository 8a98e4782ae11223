"""What the parts of a cluster have logged since a test began: printed where the test fails.

Each part registers its log when it is made. So a new kind of part needs no change here, and no test names parts.
"""

import glob
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_LINES, _WIDTH = 120, 600
_MOST_BYTES = 4 << 20
"""Read of each log; a busy API server writes more in a long test."""

_logs: dict[Path, str] = {}
_container_logs: list[Path] = []
_descriptions: dict[str, Callable[[], str]] = {}


def register_log(part: str, path: Path) -> None:
    _logs[path] = part


def register_container_logs(folder: Path) -> None:
    """Kubelet's folder of logs: POD/CONTAINER/RUN.log, with the namespace and the UID in the name of the pod's."""
    _container_logs.append(folder)


def register_description(title: str, describe: Callable[[], str]) -> None:
    """What to ask when a test has failed."""
    _descriptions[title] = describe


def size(log: Path) -> int:
    """Zero if there is none, or none any more: kubelet removes those of a pod at any moment after its end."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def present(folder: Path, pattern: str) -> list[Path]:
    """What matches below it. `Path.glob` fails when a folder goes while it looks."""
    return [folder / name for name in glob.glob(pattern, root_dir=folder)]


def newest(logs: Iterable[Path]) -> str:
    """What was written last of these, each of which may go at any moment."""
    texts = []
    for log in logs:
        with suppress(FileNotFoundError):
            texts.append((log.stat().st_mtime, log.read_text()))
    return max(texts, default=(0.0, ""))[1]


class SinceTestBegan:
    """Made when a test begins."""

    def __init__(self) -> None:
        self._sizes = {path: size(path) for path in _files()}

    def sections(self) -> Iterator[tuple[str, str]]:
        """Title and text for each part that has logged anything, and for what can be asked."""
        for title, describe in _descriptions.items():
            yield title, _described(describe)
        for path, part in _files().items():
            if lines := self._lines(path):
                shown = "the last lines since the test began" if len(lines) > _LINES else "since the test began"
                yield f"log of {part}, {shown} ({path})", "\n".join(lines[-_LINES:])

    def _lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as log:
                log.seek(max(self._sizes.get(path, 0), size(path) - _MOST_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line[:_WIDTH] for line in text.splitlines()]


def _files() -> dict[Path, str]:
    containers = {
        path: f"container {path.parent.name} of pod {path.parent.parent.name}"
        for folder in _container_logs
        for path in sorted(present(folder, "*/*/*.log"))
    }
    return _logs | containers


def _described(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except Exception as error:  # whatever is broken: the logs are what counts
        return f"cannot be asked: {error!r}"
