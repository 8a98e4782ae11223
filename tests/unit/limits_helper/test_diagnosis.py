"""Each reason why the driver limits nothing has its own sentence, which says what to do."""

import os

import pytest

from gpuagent.limits_helper import host_facts
from gpuagent.limits_helper.diagnosis import HostFacts, why_refused
from gpuagent.limits_helper.limit_setter import CgroupPlace, LimitSetter
from gpuagent.limits_helper.probe import NAME
from tests.cgroup_trees import CgroupTree
from tests.unit.limits_helper.fake_driver import FakeDriver, error

ROOT = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("code", "facts", "words"),
    [
        ("FUNCTION_NOT_FOUND", {}, "NVIDIA driver 580.1 has no memory limits: install driver 615"),
        ("FUNCTION_NOT_FOUND", {"cgroup_v2": False}, "install driver 615"),
        ("NOT_SUPPORTED", {"cgroup_v2": False}, "no cgroup v2 at /sys/fs/cgroup"),
        ("NOT_FOUND", {"cgroup_v2": False}, "no cgroup v2"),
        ("NOT_SUPPORTED", {"switched_off": True}, "RmMemacctMode=0"),
        ("NOT_SUPPORTED", {}, "does not support memory limits on this node"),
        ("NO_PERMISSION", {"user_namespace": True, "sys_admin": True}, "hostUsers: true"),
        ("NO_PERMISSION", {"sys_admin": False}, "add SYS_ADMIN"),
        ("NO_PERMISSION", {"read_only": True}, "mounted read-only"),
        ("NO_PERMISSION", {}, "run its container as user 0"),
        ("UNKNOWN", {"read_only": True}, "mounted read-only"),
        ("NOT_FOUND", {}, "controller dmem is not enabled"),
        ("GPU_IS_LOST", {}, "fell off the bus"),
        ("UNKNOWN", {}, "NVRM lines"),
        ("IN_USE", {}, "NVML code 19"),
    ],
)
def test_reasons(code, facts, words):
    text = why_refused(error(code), HostFacts(cgroup_root=ROOT, **facts), driver="580.1", mig=False)
    assert words in text
    assert text.isprintable()


def test_mig_is_why_whatever_the_code_is():
    for code in ("NOT_SUPPORTED", "INVALID_ARGUMENT", "UNKNOWN"):
        assert "MIG mode" in why_refused(error(code), HostFacts(cgroup_root=ROOT), driver="", mig=True)


def write_proc(proc, status="", uid_map="", params="") -> None:
    (proc / "self").mkdir(parents=True)
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "self/status").write_text(status)
    (proc / "self/uid_map").write_text(uid_map)
    (proc / "driver/nvidia/params").write_text(params)


def test_facts_of_a_helper_as_it_should_be(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    write_proc(
        tmp_path / "proc",
        "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t00000000a82425fb\n".replace("a82425fb", "a8a425fb"),
        "         0          0 4294967295\n",
        'EnableMSI: 1\nRegistryDwords: "RmMemacctMode=3;Other=0"\n',
    )
    assert host_facts.read(tmp_path, tmp_path / "proc") == HostFacts(cgroup_root=str(tmp_path))


def test_facts_of_one_that_cannot_work(tmp_path):
    write_proc(
        tmp_path / "proc",
        "CapEff:\t00000000a80425fb\n",
        "         0     100000      65536\n",
        'RegistryDwords: "RmMemacctMode=0"\n',
    )
    assert host_facts.read(tmp_path, tmp_path / "proc") == HostFacts(
        cgroup_root=str(tmp_path), cgroup_v2=False, user_namespace=True, sys_admin=False, switched_off=True
    )


def test_what_cannot_be_read_counts_as_usual(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    assert host_facts.read(tmp_path, tmp_path / "missing") == HostFacts(cgroup_root=str(tmp_path))
    assert not host_facts.read(tmp_path / "missing").read_only


def test_a_root_without_a_place_for_the_probe(tmp_path, monkeypatch):
    tree = CgroupTree(tmp_path)
    (tree.pods_root / NAME).touch()
    setter = LimitSetter(CgroupPlace(root=tmp_path), FakeDriver())
    assert "cannot be made" in setter.describe().problem
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([0] * 8 + [os.ST_RDONLY, 255]))
    setter = LimitSetter(CgroupPlace(root=tmp_path), FakeDriver())
    assert "mounted read-only" in setter.describe().problem
