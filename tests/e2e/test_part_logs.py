"""The logs that a failure shows, while kubelet makes and removes some."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import part_logs
from tests.e2e.cluster.part_logs import SinceTestBegan, newest, present


@pytest.fixture
def pod_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which logs of pods come and go all the time."""
    monkeypatch.setattr(part_logs, "_logs", {})
    monkeypatch.setattr(part_logs, "_descriptions", {})
    monkeypatch.setattr(part_logs, "_container_logs", [tmp_path])
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            for number in range(20):
                folder = tmp_path / f"default_pod-{number}_uid" / "main"
                folder.mkdir(parents=True)
                (folder / "0.log").write_text("said\n")
            for folder in tmp_path.glob("*"):
                shutil.rmtree(folder)

    kubelet = threading.Thread(target=come_and_go)
    kubelet.start()
    yield tmp_path
    over.set()
    kubelet.join()


def test_a_log_may_go_at_any_moment(pod_logs: Path) -> None:
    for _ in range(300):
        shown = dict(SinceTestBegan().sections())
        assert set(shown.values()) <= {"said"}
        assert newest(present(pod_logs, "*/main/*.log")) in {"", "said\n"}
