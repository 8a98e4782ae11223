"""Limits are set where they are meant, read back, and every failure is a sentence that says what to do."""

import logging
import shutil

import pytest

from gpuagent.host import cgroups
from gpuagent.host.limits_client import (
    NO_LIMIT,
    BelowUseError,
    Limit,
    LimitDriverError,
    NoTargetError,
    RefusedError,
    Target,
)
from gpuagent.limits_helper.limit_setter import PROBED_S, PROBLEM_S, CgroupPlace, LimitSetter
from gpuagent.limits_helper.probe import NAME
from tests.cgroup_trees import CONTAINER, LAYOUTS, OTHER_POD, POD, QOS, CgroupTree
from tests.unit.limits_helper.fake_driver import GIB, UUIDS, FakeDriver, error

GPU = UUIDS[0]


@pytest.fixture
def tree(tmp_path) -> CgroupTree:
    (tmp_path / "cgroup.controllers").touch()
    return CgroupTree(tmp_path)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def setter(tree, driver, clock) -> LimitSetter:
    return LimitSetter(CgroupPlace(root=tree.root), driver, clock=clock)


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path, driver, layout, qos):
    tree = CgroupTree(tmp_path, **LAYOUTS[layout])
    pod = tree.add_pod(POD, qos)
    leaves = tree.add_container(pod)
    setter = LimitSetter(CgroupPlace(root=tmp_path), driver)
    for number, leaf in enumerate(["", *leaves], start=1):
        target = Target(GPU, POD, leaf)
        assert setter.get(target) == Limit(None, 0)
        assert setter.set(target, number * GIB) == Limit(number * GIB, 0)
        assert setter.get(target) == Limit(number * GIB, 0)
    assert driver.limits == {(GPU, pod / leaf): number * GIB for number, leaf in enumerate(["", *leaves], start=1)}
    assert setter.set(Target(GPU, POD, leaves[-1]), NO_LIMIT) == Limit(None, 0)


def test_a_limit_that_the_driver_rounds_counts(tree, driver, setter, monkeypatch):
    pod = tree.add_pod(POD)
    monkeypatch.setattr(driver, "set_memory_limits", lambda *_: driver.limits.update({(GPU, pod): 5 * GIB}))
    assert setter.set(Target(GPU, POD), 5 * GIB + 4096) == Limit(5 * GIB, 0)
    with pytest.raises(LimitDriverError, match="do not trust"):
        setter.set(Target(GPU, POD), 6 * GIB)


def test_every_limit_that_is_set_is_in_the_log(tree, setter, caplog):
    tree.add_pod(POD)
    with caplog.at_level(logging.INFO):
        setter.set(Target(GPU, POD), GIB)
    record = next(record for record in caplog.records if record.message == "Set limit")
    assert (record.gpu, record.pod, record.leaf, record.bytes) == (GPU, POD, "", GIB)


def test_no_such_target(tree, driver, setter):
    tree.add_pod(POD)
    for target, words in (
        (Target(GPU, OTHER_POD), f"pod {OTHER_POD} has no cgroup"),
        (Target(GPU, POD, CONTAINER), "has ended"),
        (Target("GPU-99999999-1111-2222-3333-444444444444", POD), "no GPU GPU-9"),
    ):
        for call in (lambda: setter.get(target), lambda: setter.set(target, GIB)):
            with pytest.raises(NoTargetError, match=words):
                call()
    assert driver.sets == []


def test_no_link_is_followed(tree, driver, setter, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    pod = tree.add_pod(POD)
    (pod / CONTAINER).symlink_to(outside)
    with pytest.raises(RefusedError, match="is a link"):
        setter.set(Target(GPU, POD, CONTAINER), GIB)
    pod.parent.rename(outside / "burstable")
    pod.parent.symlink_to(outside / "burstable")
    with pytest.raises(RefusedError, match="is a link"):
        setter.set(Target(GPU, POD), GIB)
    assert driver.sets == []


def test_a_directory_that_is_replaced_meanwhile(tree, driver, setter):
    pod = tree.add_pod(POD)

    def replace(_directory) -> None:
        other = tree.root / "other"
        other.mkdir()
        pod.rmdir()
        other.rename(pod)

    driver.before_set = replace
    with pytest.raises(NoTargetError, match="made again meanwhile"):
        setter.set(Target(GPU, POD), GIB)
    driver.before_set = lambda _: shutil.rmtree(pod)
    with pytest.raises(NoTargetError, match="has ended"):
        setter.set(Target(GPU, POD), GIB)


@pytest.mark.parametrize("ask", ["get", "set"])
def test_a_cgroup_that_is_removed_while_its_limit_is_read(tree, driver, setter, monkeypatch, ask):
    """Pods end all the time, so this is no fault of the driver."""
    pod = tree.add_pod(POD)

    def remove_and_fail(*_):
        shutil.rmtree(pod)
        raise error("NOT_FOUND", "nvmlDeviceGetMemoryLimits_v1")

    setter.describe()
    monkeypatch.setattr(driver, "memory_limits", remove_and_fail)
    calls = {"get": lambda: setter.get(Target(GPU, POD)), "set": lambda: setter.set(Target(GPU, POD), GIB)}
    with pytest.raises(NoTargetError, match="has ended"):
        calls[ask]()
    assert setter.describe().problem is None


@pytest.mark.parametrize("refusal", [None, "INVALID_ARGUMENT", "UNKNOWN"])
def test_below_use(tree, driver, setter, refusal):
    pod = tree.add_pod(POD)
    setter.set(Target(GPU, POD), 8 * GIB)
    driver.used[GPU, pod] = int(6.1 * GIB)
    if refusal:
        driver.refusals[GPU] = error(refusal)
    with pytest.raises(BelowUseError, match=r"uses 6.1 GiB .* new limit of 2 GiB; the former limit holds") as caught:
        setter.set(Target(GPU, POD), 2 * GIB)
    assert caught.value.used == int(6.1 * GIB)
    assert setter.get(Target(GPU, POD)) == Limit(8 * GIB, int(6.1 * GIB))


def test_success_without_effect_is_no_success(tree, driver, setter):
    tree.add_pod(POD)
    driver.ignores = True
    with pytest.raises(LimitDriverError, match=r"success for a limit of 1073741824 bytes, and then no limit"):
        setter.set(Target(GPU, POD), GIB)


def test_describe_tries_on_each_gpu(tree, driver, setter):
    described = setter.describe()
    assert described.driver == "615.71.09"
    assert described.pods_root == tree.pods_root
    assert described.backend == "misc"
    assert described.gpus == dict.fromkeys(UUIDS)
    assert described.problem is None
    probe = tree.pods_root / NAME
    assert [(uuid, path) for uuid, path, _ in driver.sets] == [(uuid, probe) for uuid in UUIDS]
    assert probe.is_dir(), "it stays, so that no other cgroup gets its address in the kernel"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_limits_are_tried_where_they_will_be_set(tmp_path, driver, layout):
    """The controllers of a cgroup are those that the ones above it enable, and those of pods may be fewer."""
    tree = CgroupTree(tmp_path, **LAYOUTS[layout])
    (tmp_path / "cgroup.controllers").touch()
    setter = LimitSetter(CgroupPlace(root=tmp_path), driver)

    def refuse_pods(directory) -> None:
        if tree.pods_root in directory.parents:
            raise error("NOT_FOUND")

    driver.before_set = refuse_pods
    described = setter.describe()
    assert set(described.gpus) == set(UUIDS)
    assert None not in described.gpus.values()
    assert described.pods_root == tree.pods_root
    assert "each cgroup from there to kubepods" in described.problem


def test_the_probe_moves_with_the_pods(tmp_path, driver, setter, tree, clock):
    """Kubelet may be started again with another driver of cgroups."""
    setter.describe()
    shutil.rmtree(tree.pods_root)
    moved = CgroupTree(tmp_path, systemd=True)
    clock.now += PROBED_S
    assert setter.describe().pods_root == moved.pods_root
    assert driver.sets[-1][1] == moved.pods_root / NAME


def test_kubelet_does_not_take_the_probe_for_an_ended_pod():
    """It removes every cgroup beside its pods' whose name has "pod" in it, and no such pod (`GetAllPodsFromCgroups`)."""
    assert "pod" not in NAME
    assert cgroups.PodsRoot(cgroups.CGROUP_ROOT / "kubepods").pod_in("", NAME) is None


def test_a_driver_that_does_nothing_is_found_out_although_an_old_limit_reads_well(driver, setter, clock):
    assert setter.describe().problem is None
    driver.ignores = True
    clock.now += PROBED_S
    assert "do not trust" in setter.describe().problem


@pytest.mark.parametrize("text", ["", "drm/0000:07:00.0/vram0 max\n", None])
def test_backend_misc_even_where_the_kernel_has_dmem(tree, setter, text):
    probe = tree.pods_root / NAME
    probe.mkdir()
    if text is not None:
        (probe / "dmem.max").write_text(text)
    assert setter.describe().backend == "misc"


def test_backend_dmem_writes_the_cgroups_file(tree, driver, setter):
    probe = tree.pods_root / NAME
    real_set = driver.set_memory_limits

    def set_limits(gpu, directory, soft, hard) -> None:
        real_set(gpu, directory, soft, hard)
        (directory / "dmem.max").write_text(f"drm/0000:07:00.0/vram0 {hard}\ndrm/0000:08:00.0/vram0 max\n")

    driver.set_memory_limits = set_limits
    assert setter.describe().backend == "dmem"
    assert probe.is_dir()


def test_when_it_is_tried_again(tree, driver, setter, clock):
    tree.add_pod(POD)

    def tries() -> int:
        before = len(driver.sets)
        setter.describe()
        return (len(driver.sets) - before) // len(UUIDS)

    assert [tries(), tries()] == [1, 0]
    clock.now = PROBED_S - 1
    assert tries() == 0
    clock.now = PROBED_S
    assert tries() == 1
    driver.ignores = True
    with pytest.raises(LimitDriverError):
        setter.set(Target(GPU, POD), GIB)
    driver.ignores = False
    assert tries() == 1, "a limit could not be set"
    driver.ignores = True
    clock.now += PROBED_S
    assert [tries(), tries()] == [1, 0]
    clock.now += PROBLEM_S
    driver.ignores = False
    assert [tries(), tries()] == [1, 0], "what does not work is tried again sooner"


def test_a_driver_that_has_gone_is_seen_without_another_probe(driver, setter):
    assert setter.describe().problem is None
    driver.absent = error("UNINITIALIZED", "nvmlDeviceGetCount")
    assert "driver cannot be used" in setter.describe().problem
    driver.absent = None
    assert setter.describe().problem is None


def test_no_limit_anywhere_is_not_taken_for_no_limits_at_all(tree, driver, setter):
    tree.add_pod(POD)
    assert setter.get(Target(GPU, POD)) == Limit(None, 0)
    driver.refusals[GPU] = error("NOT_SUPPORTED")
    driver.mig.add(GPU)
    setter.describe()
    with pytest.raises(LimitDriverError, match="MIG mode"):
        setter.get(Target(GPU, POD))
    assert setter.get(Target(UUIDS[1], POD)) == Limit(None, 0)


def test_one_gpu_in_mig_mode(driver, setter):
    driver.refusals[GPU] = error("NOT_SUPPORTED")
    driver.mig.add(GPU)
    described = setter.describe()
    assert "MIG mode" in described.gpus[GPU]
    assert described.gpus[UUIDS[1]] is None
    assert described.problem is None


def test_no_gpu_works_for_two_reasons(driver, setter):
    driver.refusals[None] = error("GPU_IS_LOST")
    driver.refusals[GPU] = error("NOT_SUPPORTED")
    driver.mig.add(GPU)
    described = setter.describe()
    assert None not in described.gpus.values()
    assert "MIG mode" in described.problem
    assert "fell off the bus" in described.problem


def test_without_gpus(driver, setter):
    driver.uuids.clear()
    assert "no GPU" in setter.describe().problem


def test_without_pods_cgroups(tmp_path, driver):
    setter = LimitSetter(CgroupPlace(root=tmp_path), driver)
    assert "cgroupsPerQOS" in setter.describe().problem
    with pytest.raises(NoTargetError, match="cgroupsPerQOS"):
        setter.set(Target(GPU, POD), GIB)
    tree = CgroupTree(tmp_path)
    tree.add_pod(POD)
    assert setter.set(Target(GPU, POD), GIB) == Limit(GIB, 0), "kubelet may start after the helper"


def test_a_named_pods_root(tmp_path, driver):
    CgroupTree(tmp_path)
    tree = CgroupTree(tmp_path, above="kubelet")
    tree.add_pod(POD)
    setter = LimitSetter(CgroupPlace(root=tmp_path, pods="kubelet/kubepods"), driver)
    assert setter.describe().pods_root == tree.pods_root
    assert setter.set(Target(GPU, POD), GIB) == Limit(GIB, 0)


def test_a_driver_that_is_not_there_yet(tree, driver, setter):
    tree.add_pod(POD)
    driver.absent = error("DRIVER_NOT_LOADED", "nvmlInit")
    assert "not loaded" in setter.describe().problem
    with pytest.raises(LimitDriverError, match="modprobe nvidia"):
        setter.set(Target(GPU, POD), GIB)
    driver.absent = None
    assert setter.set(Target(GPU, POD), GIB) == Limit(GIB, 0)


def test_nvml_stays_open_so_that_no_gpu_is_shut_down(tree, driver, setter):
    tree.add_pod(POD)
    for _ in range(3):
        setter.describe()
        setter.set(Target(GPU, POD), GIB)
        setter.get(Target(GPU, POD))
    driver.refusals[GPU] = error("GPU_IS_LOST")
    with pytest.raises(LimitDriverError):
        setter.set(Target(GPU, POD), GIB)
    driver.uuids.append("GPU-00000002-1111-2222-3333-444444444444")
    setter.get(Target(driver.uuids[-1], POD))
    assert (driver.opened, driver.sessions) == (1, 1)


@pytest.mark.parametrize("call", ["set", "get", "describe"])
@pytest.mark.parametrize("code", ["GPU_IS_LOST", "UNKNOWN", "INVALID_ARGUMENT"])
def test_a_gpu_that_was_away_is_asked_by_its_new_handle(tree, driver, setter, clock, code, call):
    tree.add_pod(POD)
    target = Target(GPU, POD)
    setter.describe()
    setter.set(target, GIB)
    driver.return_gpu(GPU, error(code))
    clock.now += PROBED_S
    if call == "describe":
        assert setter.describe().gpus == dict.fromkeys(UUIDS)
    elif call == "get":
        assert setter.get(target) == Limit(None, 0), "a limit that the GPU lost is seen"
    assert setter.set(target, 2 * GIB) == Limit(2 * GIB, 0)
    assert (driver.opened, driver.sessions) == (1, 1), "the other GPUs' limits hold only while NVML is open"


def test_a_gpu_that_stays_lost_is_named_as_lost_and_logged_once(tree, driver, setter, caplog, monkeypatch):
    tree.add_pod(POD)
    setter.describe()
    lost = error("GPU_IS_LOST")
    driver.return_gpu(GPU, lost)
    handle = driver.handle

    def lost_handle(index):
        if index == UUIDS.index(GPU):
            raise lost
        return handle(index)

    monkeypatch.setattr(driver, "handle", lost_handle)
    for _ in range(3):
        with pytest.raises(LimitDriverError, match="fell off the bus"):
            setter.get(Target(GPU, POD))
    described = setter.describe()
    assert "fell off the bus" in described.gpus[GPU]
    assert described.gpus[UUIDS[1]] is None
    assert [record.message for record in caplog.records].count("Left out GPUs") == 1


@pytest.mark.parametrize("during", ["set", "get", "describe"])
def test_nvml_is_opened_again_when_the_driver_returns(tree, driver, setter, during):
    tree.add_pod(POD)
    target = Target(GPU, POD)
    setter.set(target, GIB)
    driver.absent = error("UNINITIALIZED", "nvmlDeviceGetCount")
    if during == "describe":
        assert setter.describe().problem
    else:
        with pytest.raises(LimitDriverError, match="driver cannot be used"):
            setter.set(target, GIB) if during == "set" else setter.get(target)
    assert driver.sessions == 0
    driver.limits.clear()
    driver.absent = None
    assert setter.get(target) == Limit(None, 0), "a limit that the driver lost is seen"
    assert setter.set(target, GIB) == Limit(GIB, 0)
    assert driver.opened == 2


def test_a_replaced_driver_takes_a_new_container(tree, driver, setter, clock):
    setter.describe()
    driver.absent = error("UNINITIALIZED", "nvmlDeviceGetCount")
    clock.now += PROBED_S
    setter.describe()
    assert not setter.is_outdated
    driver.absent = error("LIB_RM_VERSION_MISMATCH", "nvmlInit")
    setter.describe()
    assert setter.is_outdated


def test_a_wrong_version_from_the_beginning_does_not_restart_again_and_again(driver, setter):
    driver.absent = error("LIB_RM_VERSION_MISMATCH", "nvmlInit")
    assert "different versions" in setter.describe().problem
    assert not setter.is_outdated


def test_nothing_but_the_probe_is_made(tree, driver, setter):
    pod = tree.add_pod(POD)
    tree.add_container(pod)
    before = {path.relative_to(tree.root) for path in tree.root.rglob("*")}
    setter.describe()
    setter.set(Target(GPU, POD), GIB)
    setter.get(Target(GPU, POD, CONTAINER))
    after = {path.relative_to(tree.root) for path in tree.root.rglob("*")}
    assert {tree.root / path for path in after - before} == {tree.pods_root / NAME}
    assert cgroups.identify(tree.root, pod)
