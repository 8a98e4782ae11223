"""Cgroups are reported as they appear, for many pods with one descriptor."""

import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuagent.host.cgroup_watch import CgroupWatch
from gpuagent.host.cgroups import find_pods_root, leaves
from gpuagent.system.inotify import IN_Q_OVERFLOW, Inotify, InotifyEvent
from standin.waiting import PATIENCE_S
from tests.cgroup_trees import CONTAINER, LAYOUTS, OTHER_POD, POD, SANDBOX, CgroupTree


class Reports:
    """What a watch reported."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.rescans = 0
        self._changed = threading.Condition()

    def appeared(self, pod: str, leaf: str) -> None:
        with self._changed:
            self.seen.add((pod, leaf))
            self._changed.notify_all()

    def rescan(self) -> None:
        with self._changed:
            self.rescans += 1
            self._changed.notify_all()

    def until(self, holds) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, PATIENCE_S), self.seen

    def until_seen(self, pod: str, *names: str) -> None:
        self.until(lambda: {(pod, name) for name in names} <= self.seen)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def watch(reports) -> Iterator[CgroupWatch]:
    watch = CgroupWatch(reports.appeared, reports.rescan)
    watch.start()
    yield watch
    watch.stop()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_containers_before_and_after(tmp_path, watch, reports, layout):
    tree = CgroupTree(tmp_path, **LAYOUTS[layout])
    pod = tree.add_pod(POD)
    other = tree.add_pod(OTHER_POD)
    before = tree.add_container(pod, SANDBOX)
    watch.add(POD, pod)
    watch.add(POD, pod)
    reports.until_seen(POD, *before)
    after = tree.add_container(pod, CONTAINER)
    tree.add_container(other)
    reports.until_seen(POD, *after)
    expected = {(POD, name) for name in leaves(pod)}
    assert reports.seen == expected, "no monitors, and no pods that nobody asked for"


def test_cruns_child_that_comes_later(tmp_path, watch, reports):
    tree = CgroupTree(tmp_path, systemd=True, runtime="crun")
    pod = tree.add_pod(POD)
    watch.add(POD, pod)
    name = tree.leaf(CONTAINER)
    (pod / name).mkdir()
    reports.until_seen(POD, name)
    (pod / name / "container").mkdir()
    reports.until_seen(POD, f"{name}/container")


def test_a_container_that_makes_cgroups_causes_one_event(tmp_path, watch, reports):
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    watch.add(POD, pod)
    tree.add_container(pod)
    reports.until_seen(POD, CONTAINER)
    for number in range(1000):
        (pod / CONTAINER / f"mine-{number}").mkdir()
    (pod / CONTAINER / "container").mkdir()
    tree.add_container(pod, SANDBOX)
    reports.until_seen(POD, SANDBOX)
    assert (POD, f"{CONTAINER}/container") not in reports.seen
    assert reports.rescans == 0


def test_many_pods_use_one_inotify_instance(tmp_path, watch, reports):
    tree = CgroupTree(tmp_path)
    uids = [f"{number:08x}-2222-4333-8444-555555555555" for number in range(200)]
    for uid in uids:
        watch.add(uid, tree.add_pod(uid))
    for uid in uids:
        tree.add_container(tree.pod_path(uid))
    for uid in uids:
        reports.until_seen(uid, CONTAINER)
    assert max(directories_of_instances()) >= len(uids)


def directories_of_instances() -> list[int]:
    """How many directories each inotify instance of this process watches. Threads of other tests may have some."""
    numbers = []
    for entry in Path("/proc/self/fdinfo").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            numbers.append(sum(line.startswith("inotify ") for line in entry.read_text().splitlines()))
    return numbers


@pytest.mark.parametrize("layout", ["cgroupfs", "systemd", "kind, systemd"])
def test_pods_of_every_class_as_they_appear(tmp_path, watch, reports, layout):
    tree = CgroupTree(tmp_path, **LAYOUTS[layout])
    tree.add_pod(POD, "")
    watch.add_pods_of(find_pods_root(tmp_path))
    reports.until_seen(POD, "")
    tree.add_pod(OTHER_POD, "besteffort")  # kubelet makes the directory of the class just now
    reports.until_seen(OTHER_POD, "")
    assert len(reports.seen) == 2


def test_a_pod_that_has_ended(tmp_path, watch, reports):
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    watch.add(POD, pod)
    assert watch.pods == {POD}
    shutil.rmtree(pod)
    deadline = time.monotonic() + PATIENCE_S
    while watch.pods:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    with pytest.raises(FileNotFoundError):
        watch.add(POD, pod)
    tree.add_pod(POD)
    watch.add(POD, pod)
    tree.add_container(pod)
    reports.until_seen(POD, CONTAINER)


def test_a_pod_that_is_removed_is_not_reported(tmp_path, watch, reports):
    tree = CgroupTree(tmp_path)
    for uid in (POD, OTHER_POD):
        watch.add(uid, tree.add_pod(uid))
    watch.remove(POD)
    watch.remove("not watched")
    for uid in (POD, OTHER_POD):
        tree.add_container(tree.pod_path(uid))
    reports.until_seen(OTHER_POD, CONTAINER)
    assert reports.seen == {(OTHER_POD, CONTAINER)}


def test_lost_events(tmp_path, watch, reports, monkeypatch):
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    tree.add_container(pod, SANDBOX)
    watch.add(POD, pod)
    reports.until_seen(POD, SANDBOX)
    real_read = Inotify.read

    def read(inotify: Inotify) -> list[InotifyEvent]:
        return [InotifyEvent(-1, IN_Q_OVERFLOW, "")] if real_read(inotify) else []

    monkeypatch.setattr(Inotify, "read", read)
    tree.add_container(pod)
    reports.until(lambda: reports.rescans > 0)
    reports.until_seen(POD, CONTAINER)


def test_a_caller_that_adds_a_pod_again_whenever_something_appears(tmp_path, reports):
    """As one that asks for the same of every pod that it looks at."""
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    tree.add_container(pod, SANDBOX)
    appeared = []

    def add_again(uid: str, leaf: str) -> None:
        appeared.append(leaf)
        watch.add(uid, pod)
        reports.appeared(uid, leaf)

    watch = CgroupWatch(add_again, reports.rescan)
    watch.start()
    watch.add(POD, pod)
    try:
        reports.until_seen(POD, SANDBOX)
        tree.add_container(pod, CONTAINER)
        reports.until_seen(POD, CONTAINER)
        assert sorted(appeared) == sorted((SANDBOX, CONTAINER))
    finally:
        watch.stop()


def test_an_error_of_the_caller_ends_nothing(tmp_path, caplog):
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def appeared(_pod: str, leaf: str) -> None:
        seen.put(leaf)
        raise RuntimeError("a bug")

    watch = CgroupWatch(appeared, lambda: None)
    watch.start()
    watch.add(POD, pod)
    for container in (CONTAINER, SANDBOX):
        tree.add_container(pod, container)
        while seen.get(timeout=PATIENCE_S) != container:
            pass
    watch.stop()
    assert "Failed to handle" in caplog.text


STOPPED = """
import os, sys, threading
from pathlib import Path
from gpuagent.host.cgroup_watch import CgroupWatch

def ignore(*_): pass

before = os.listdir("/proc/self/fd")
CgroupWatch(ignore, ignore).stop()
watch = CgroupWatch(ignore, ignore)
watch.start()
watch.add("pod", Path(sys.argv[1]))
watch.stop()
assert threading.active_count() == 1, threading.enumerate()
assert len(os.listdir("/proc/self/fd")) == len(before)
"""
"""In a process of its own, because threads of other tests may still end."""


def test_a_stop_ends_it_at_once_and_leaves_nothing(tmp_path):
    subprocess.run([sys.executable, "-c", STOPPED, tmp_path], check=True, timeout=PATIENCE_S)
