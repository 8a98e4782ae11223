"""What the parts of a cluster have logged since a test began: printed where the test fails.

Each part registers its log when it is made. So a new kind of part needs no change here, and no test names parts.
"""

from collections.abc import Callable, Iterator
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


class SinceTestBegan:
    """Made when a test begins."""

    def __init__(self) -> None:
        self._sizes = {path: path.stat().st_size for path in _files() if path.exists()}

    def sections(self) -> Iterator[tuple[str, str]]:
        """Title and text for each part that has logged anything, and for what can be asked."""
        for title, describe in _descriptions.items():
            yield title, _described(describe)
        for path, part in _files().items():
            if lines := self._lines(path):
                shown = "the last lines since the test began" if len(lines) > _LINES else "since the test began"
                yield f"log of {part}, {shown} ({path})", "\n".join(lines[-_LINES:])

    def _lines(self, path: Path) -> list[str]:
        if not path.exists():
            return []
        with path.open("rb") as log:
            log.seek(max(self._sizes.get(path, 0), path.stat().st_size - _MOST_BYTES))
            text = log.read().decode(errors="replace")
        return [line[:_WIDTH] for line in text.splitlines()]


def _files() -> dict[Path, str]:
    containers = {
        path: f"container {path.parent.name} of pod {path.parent.parent.name}"
        for folder in _container_logs
        for path in sorted(folder.glob("*/*/*.log"))
    }
    return _logs | containers


def _described(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except Exception as error:  # whatever is broken: the logs are what counts
        return f"cannot be asked: {error!r}"
