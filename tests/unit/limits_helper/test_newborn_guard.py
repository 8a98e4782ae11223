"""On backend misc, a new container gets the limit of its pod, whoever had its cgroup's address before."""

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from gpuagent.host.limits_client import NO_LIMIT, Description, Target
from gpuagent.limits_helper.driver_thread import DriverThread
from gpuagent.limits_helper.limit_setter import CgroupPlace, LimitSetter
from gpuagent.limits_helper.newborn_guard import NewbornGuard
from gpuagent.limits_helper.probe import DMEM, MISC
from standin.waiting import PATIENCE_S
from tests.cgroup_trees import CONTAINER, OTHER_POD, POD, SANDBOX, CgroupTree
from tests.unit.limits_helper.fake_driver import GIB, UUIDS, FakeDriver, error

GPU, OTHER_GPU = UUIDS


@pytest.fixture
def tree(tmp_path) -> CgroupTree:
    (tmp_path / "cgroup.controllers").touch()
    return CgroupTree(tmp_path)


class Misc(FakeDriver):
    """A driver that finds the nearest limit, and whose new cgroups below a pod have `inherited` from dead ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inherited: dict[str, int] = {}
        self._changed = threading.Condition()

    def memory_limits(self, gpu, directory):
        if directory.name in self.inherited:
            self.limits.setdefault((self.uuids[gpu.index], directory), self.inherited[directory.name])
        for nearest in (directory, directory.parent):
            limits = super().memory_limits(gpu, nearest)
            if limits:
                return limits
        return None

    def set_memory_limits(self, gpu, directory, soft, hard):
        super().set_memory_limits(gpu, directory, soft, hard)
        with self._changed:
            self._changed.notify_all()

    def until(self, directory, size) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.limits.get((GPU, directory)) == size, PATIENCE_S), self.limits


@pytest.fixture
def driver() -> Misc:
    return Misc()


class Helper:
    """The guard, and what it works with."""

    def __init__(self, tree, driver) -> None:
        self._tree = tree
        self.setter = LimitSetter(CgroupPlace(root=tree.root), driver, lambda *_: MISC)
        self.thread = DriverThread(lambda: driver.pending)
        self.guard = NewbornGuard(self.setter, self.thread)

    def follow(self, backend=MISC, root=True) -> None:
        pods_root = self._tree.pods_root if root else None
        self.guard.follow(Description("615.71.09", pods_root, backend, dict.fromkeys(UUIDS), None))

    def set(self, pod, size, leaf="") -> None:
        self.thread.run(lambda: self.setter.set(Target(GPU, pod, leaf), size))


@pytest.fixture
def helper(tree, driver) -> Iterator[Helper]:
    helper = Helper(tree, driver)
    yield helper
    helper.guard.stop()


@pytest.mark.parametrize("inherited", [GIB, 80 * GIB])
def test_a_container_that_inherits_a_limit_gets_that_of_its_pod(tree, driver, helper, inherited):
    """A larger one would let it take more, and a smaller one would keep it from its share."""
    pod = tree.add_pod(POD)
    tree.add_container(pod, SANDBOX)
    helper.follow()
    helper.set(POD, 4 * GIB)
    driver.inherited[CONTAINER] = inherited
    tree.add_container(pod, CONTAINER)
    driver.until(pod / CONTAINER, 4 * GIB)
    assert (GPU, pod / SANDBOX) not in driver.limits
    assert (OTHER_GPU, pod / CONTAINER) not in {key for key in driver.limits if driver.limits[key] == 4 * GIB}


def test_pods_that_appear_later_in_classes_that_appear_later(tree, driver, helper):
    helper.follow(root=False)
    helper.follow()
    pod = tree.add_pod(POD, "besteffort")
    tree.add_container(pod, SANDBOX)
    helper.set(POD, 4 * GIB)
    driver.inherited[CONTAINER] = 80 * GIB
    tree.add_container(pod, CONTAINER)
    driver.until(pod / CONTAINER, 4 * GIB)


def test_containers_that_were_there_before_keep_what_the_agent_gave_them(tree, driver, helper):
    """Also if their directories are read again."""
    pod = tree.add_pod(POD)
    tree.add_container(pod, CONTAINER)
    helper.set(POD, GIB)
    helper.set(POD, 4 * GIB, CONTAINER)
    helper.follow()
    driver.inherited[SANDBOX] = 80 * GIB
    tree.add_container(pod, SANDBOX)
    driver.until(pod / SANDBOX, GIB)
    assert driver.limits[GPU, pod / CONTAINER] == 4 * GIB


@pytest.mark.parametrize("given", [8 * GIB, NO_LIMIT])
def test_what_the_agent_has_given_a_new_container_stays(tree, driver, helper, monkeypatch, given):
    """Both hear of the container at the same time, and the agent may be the first to look."""
    pod = tree.add_pod(POD)
    helper.follow()
    helper.set(POD, 4 * GIB)
    look = helper.setter.has_set
    looked = threading.Event()

    def agent_is_first(target):
        helper.setter.set(Target(GPU, POD, CONTAINER), given)
        try:
            return look(target)
        finally:
            looked.set()

    monkeypatch.setattr(helper.setter, "has_set", agent_is_first)
    driver.inherited[CONTAINER] = 80 * GIB
    tree.add_container(pod, CONTAINER)
    assert looked.wait(PATIENCE_S)
    helper.guard.stop()
    helper.thread.run(lambda: None)
    assert driver.limits[GPU, pod / CONTAINER] == given


def test_a_container_is_looked_at_once(tree, driver, helper):
    """Afterwards it is the agent's."""
    pod = tree.add_pod(POD)
    helper.follow()
    helper.set(POD, GIB)
    driver.inherited[CONTAINER] = 80 * GIB
    tree.add_container(pod, CONTAINER)
    driver.until(pod / CONTAINER, GIB)
    helper.set(POD, 4 * GIB, CONTAINER)
    helper.follow()
    other = tree.add_pod(OTHER_POD)
    helper.set(OTHER_POD, 2 * GIB)
    driver.inherited[SANDBOX] = 80 * GIB
    tree.add_container(other, SANDBOX)
    driver.until(other / SANDBOX, 2 * GIB)
    assert driver.limits[GPU, pod / CONTAINER] == 4 * GIB


def test_a_pod_without_a_limit_is_not_ours(tree, driver, helper):
    helper.follow()
    other = tree.add_pod(OTHER_POD)
    tree.add_container(other, CONTAINER)
    pod = tree.add_pod(POD)
    helper.set(POD, GIB)
    driver.inherited[CONTAINER] = 80 * GIB
    tree.add_container(pod, CONTAINER)
    driver.until(pod / CONTAINER, GIB)
    assert {directory for _, directory, _ in driver.sets} == {pod, pod / CONTAINER}


def test_a_backend_whose_limits_nest_needs_no_guard(tree, driver, helper):
    helper.follow(backend=DMEM)
    assert "newborn-guard" not in {thread.name for thread in threading.enumerate()}


def test_a_failure_is_logged_and_the_next_container_is_looked_at(tree, driver, helper, caplog):
    pod = tree.add_pod(POD)
    helper.follow()
    helper.set(POD, GIB)
    driver.refusals[None] = error("UNKNOWN")
    driver.inherited |= {CONTAINER: 80 * GIB, SANDBOX: 80 * GIB}
    with caplog.at_level(logging.WARNING):
        tree.add_container(pod, CONTAINER)
        end = time.monotonic() + PATIENCE_S
        while "Failed to look at a new container" not in caplog.messages:
            assert time.monotonic() < end
            time.sleep(0.005)
    driver.refusals.clear()
    tree.add_container(pod, SANDBOX)
    driver.until(pod / SANDBOX, GIB)


def test_only_gpus_of_the_pod_are_asked_about(tree, driver, helper, monkeypatch):
    """The next container waits meanwhile, and may begin."""
    pod = tree.add_pod(POD)
    helper.follow()
    helper.set(POD, 4 * GIB)
    asked = []
    answer = driver.memory_limits

    def note_and_answer(gpu, directory):
        asked.append(gpu.index)
        return answer(gpu, directory)

    monkeypatch.setattr(driver, "memory_limits", note_and_answer)
    driver.inherited[CONTAINER] = 80 * GIB
    tree.add_container(pod, CONTAINER)
    driver.until(pod / CONTAINER, 4 * GIB)
    assert set(asked) == {0}
