"""The fence file on a disk: every way to save, replace and remove it, and what the core hears of it."""

import errno
import os
import queue
import shutil
import threading
import time
from pathlib import Path

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.system import fence_file
from gpuagent.system.fence_file import FenceWatch
from standin.waiting import PATIENCE_S

ONE, TWO, NONE = (Fence(indexes=frozenset(indexes)) for indexes in ("1", "2", ""))
FENCED = '{"index": ["%s"]}'


class Followed:
    """A watch on a file, and what it has told, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self.watch = FenceWatch(path, self._events.put)

    def read(self) -> Fence | str:
        event = self._events.get(timeout=PATIENCE_S)
        assert isinstance(event, (ev.FenceRead, ev.FenceUnreadable))
        return event.fence if isinstance(event, ev.FenceRead) else event.reason

    def is_silent(self) -> bool:
        return self._events.empty()

    def is_in_doubt(self) -> None:
        """Wait until it has seen what it does not believe yet."""
        while not self.watch.in_doubt:
            time.sleep(0.001)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def rename(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture
def follow(tmp_path):
    made = []

    def make(path: Path = tmp_path / "etc" / "fence.json", text: str | None = None) -> Followed:
        if text is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        made.append(Followed(path))
        made[-1].watch.start()
        return made[-1]

    yield make
    for one in made:
        one.watch.stop()
    assert "fence" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def no_poll(monkeypatch):
    """What is heard is heard by inotify."""
    monkeypatch.setattr(fence_file, "POLL_S", 3600.0)


def test_the_file_is_reported_before_start_returns(follow):
    one = follow(text=FENCED % 1)
    assert not one.is_silent()
    assert one.read() == ONE


def test_without_a_file_nothing_is_reported(follow):
    assert follow().is_silent()


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("save", [Followed.write, Followed.rename])
def test_each_way_to_save_is_read_at_once(follow, save, monkeypatch):
    monkeypatch.setattr(fence_file, "SECOND_LOOK_S", 3600.0)  # a fence that was saved waits for no second look
    one = follow(text=FENCED % 1)
    assert one.read() == ONE
    save(one, FENCED % 2)
    assert one.read() == TWO
    save(one, FENCED % 1)
    assert one.read() == ONE


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("remove", [Path.unlink, lambda path: path.rename(path.parent.parent / "away")])
def test_a_file_that_goes_takes_the_fence_with_it(follow, remove):
    one = follow(text=FENCED % 1)
    assert one.read() == ONE
    remove(one.path)
    assert one.read() == NONE
    one.write(FENCED % 2)
    assert one.read() == TWO


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("old"))])
def test_a_folder_may_be_made_later_and_go_and_come_again(follow, remove):
    one = follow()
    for index, fence in ((1, ONE), (2, TWO)):
        one.path.parent.mkdir()
        one.write(FENCED % index)
        assert one.read() == fence
        remove(one.path.parent)
        assert one.read() == NONE
        shutil.rmtree(one.path.parent.with_name("old"), ignore_errors=True)


@pytest.mark.usefixtures("no_poll")
def test_a_config_map_mount_that_swaps_its_symlink_is_read(follow, tmp_path):
    folder = tmp_path / "etc"
    for version, index in (("v1", 1), ("v2", 2)):
        (folder / version).mkdir(parents=True)
        (folder / version / "fence.json").write_text(FENCED % index)
    (folder / "..data").symlink_to("v1")
    (folder / "fence.json").symlink_to("..data/fence.json")
    one = follow(folder / "fence.json")
    assert one.read() == ONE
    (folder / "..data_tmp").symlink_to("v2")
    (folder / "..data_tmp").rename(folder / "..data")
    assert one.read() == TWO


@pytest.mark.usefixtures("no_poll")
def test_a_file_that_is_bad_and_good_again_is_reported_both_times(follow):
    one = follow(text=FENCED % 1)
    assert one.read() == ONE
    one.rename('{"index": ["2"')
    assert "not JSON" in one.read()
    one.rename(FENCED % 1)
    assert one.read() == ONE


@pytest.mark.usefixtures("no_poll")
def test_a_file_that_is_being_written_or_moved_away_for_a_moment_is_not_reported(follow, monkeypatch):
    monkeypatch.setattr(fence_file, "SECOND_LOOK_S", 3600.0)
    one = follow(text=FENCED % 1)
    assert one.read() == ONE
    with one.path.open("w") as file:
        file.write('{"index": ')
        file.flush()
        (one.path.parent / "wakes it").touch()
        one.is_in_doubt()
        file.write('["2"]}')
    assert one.read() == TWO
    one.path.rename(one.path.with_suffix(".old"))
    one.is_in_doubt()
    one.write(FENCED % 1)
    assert one.read() == ONE
    assert one.is_silent()


def test_what_inotify_does_not_see_is_found_by_the_poll(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(fence_file, "POLL_S", 0.05)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(FENCED % 1)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "fence.json").symlink_to(elsewhere)
    one = follow(tmp_path / "etc" / "fence.json")
    assert one.read() == ONE
    elsewhere.write_text(FENCED % 2)
    assert one.read() == TWO


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (Path.mkdir, "cannot be read: Is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b'{"index": ["\xff"]}'), "not UTF-8"),
        (lambda path: path.write_text("{}" + " " * 70_000), "larger than 65536 bytes"),
    ],
)
def test_what_is_no_readable_file_is_reported(follow, tmp_path, make, wrong):
    (tmp_path / "etc").mkdir()
    make(tmp_path / "etc" / "fence.json")
    assert wrong in follow().read()


def test_a_file_that_may_not_be_read_is_reported_and_read_once_it_may(follow, monkeypatch):
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as refused:
        refused.setattr(os, "open", refuse)  # root may read every file
        one = follow(text=FENCED % 1)
        assert one.read() == "it cannot be read: Permission denied"
    one.path.chmod(0o600)
    assert one.read() == ONE


def test_a_link_whose_target_has_gone_lifts_no_fence(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(fence_file, "POLL_S", 0.05)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(FENCED % 1)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "fence.json").symlink_to(elsewhere)
    one = follow(tmp_path / "etc" / "fence.json")
    assert one.read() == ONE
    elsewhere.unlink()
    assert one.read() == "it is a link to a file that does not exist"
    elsewhere.write_text(FENCED % 1)
    assert one.read() == ONE
    (tmp_path / "etc" / "fence.json").unlink()
    assert one.read() == NONE


def test_a_folder_that_is_a_link_is_followed_to_where_it_leads_now(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(fence_file, "POLL_S", 0.05)
    for name, index in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fence.json").write_text(FENCED % index)
    (tmp_path / "etc").symlink_to("a")
    one = follow(tmp_path / "etc" / "fence.json")
    assert one.read() == ONE
    (tmp_path / "new").symlink_to("b")
    (tmp_path / "new").rename(tmp_path / "etc")
    assert one.read() == TWO
    monkeypatch.setattr(fence_file, "POLL_S", 3600.0)
    one.write(FENCED % 1)
    while one.read() != ONE:
        pass
    one.write(FENCED % 2)
    assert one.read() == TWO, "heard by inotify"
