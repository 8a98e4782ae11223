"""The driver `cgpu` on a `/proc/cgpu_km` of files; the real module was never at hand."""

import os
import queue
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.deviceplugin.allocate import granted
from gpuagent.domain.deviceplugin.located import locate
from gpuagent.domain.sharing.grant import DeviceStrategy, Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.isolation.cgpu import CgpuIsolation
from gpuagent.isolation.interface import IsolationError, Need, Starting
from standin.waiting import PATIENCE_S
from tests.unit.domain.builders import CORE, MEM, gpu, in_force, unit_ids, uuid


class CgpuModule:
    """A loaded module's folder."""

    def __init__(self, root: Path, *, version: str = "1.5.10", gpus: int = 2, policy: int = 5) -> None:
        self.proc = root / "cgpu_km"
        self.proc.mkdir()
        self.write("version", version)
        for index in range(gpus):
            (self.proc / str(index)).mkdir()
            self.write(f"{index}/policy", str(policy))
            self.write(f"{index}/max_inst", "20")

    def write(self, name: str, text: str) -> None:
        (self.proc / name).write_text(f"{text}\n", encoding="ascii")

    def instance(self, index: int, name: str) -> None:
        folder = self.proc / str(index) / name
        folder.mkdir()
        for file, text in {"id": "1", "meminfo": "Free: 1", "memsize": "1", "weight": "1"}.items():
            (folder / file).write_text(text, encoding="ascii")

    def remove(self) -> None:
        self.proc.rename(self.proc.with_name("gone"))


def driver(proc: Path, **options: Any) -> CgpuIsolation:
    made = CgpuIsolation(proc=proc, period_s=0.01, **options)
    made.desire(Need(gpus=(gpu(0), gpu(1))))
    return made


def share(resource: str, mode: Mode, ids: Any) -> Grant:
    snap = in_force(mode, (gpu(0), gpu(1))).snap
    return granted(resource, locate(resource, ids, snap), snap, DeviceStrategy.DEVICE_NODES)


def test_without_the_module_it_is_not_installed_and_says_what_to_do(tmp_path):
    layer = driver(tmp_path / "cgpu_km").look()
    assert not layer.installed
    assert "gpu-isolation-installer install" in (layer.problem or "")


def test_a_sound_module_keeps_memory(tmp_path):
    layer = driver(CgpuModule(tmp_path).proc).look()
    assert layer.installed
    assert layer.keeps(Mode.CGPU)
    assert (layer.version, layer.max_sharers) == ("1.5.10", 20)
    assert not layer.left_out
    assert not layer.keeps(Mode.MPS)


@pytest.mark.parametrize(("policy", "keeps"), [(0, False), (2, True), (3, True), (4, False), (5, False)])
def test_compute_is_kept_only_by_a_policy_in_which_weights_count(tmp_path, policy, keeps):
    layer = driver(CgpuModule(tmp_path, policy=policy).proc).look()
    assert layer.keeps(Mode.CORE_MEM) is keeps
    assert keeps or "gpu-isolation-installer policy" in (layer.problem_in(Mode.CORE_MEM) or "")
    assert layer.keeps(Mode.CGPU)


def test_a_version_known_to_be_bad_serves_nothing(tmp_path):
    layer = driver(CgpuModule(tmp_path, version="1.5.7").proc).look()
    assert not layer.keeps(Mode.CGPU)
    assert "1.5.7" in (layer.problem or "")


def test_a_gpu_the_module_does_not_know_is_left_out(tmp_path):
    layer = driver(CgpuModule(tmp_path, gpus=1).proc).look()
    assert set(layer.left_out) == {uuid(1)}


def test_a_smaller_limit_of_the_node_counts(tmp_path):
    module = CgpuModule(tmp_path)
    module.write("1/max_inst", "8")
    assert driver(module.proc).look().max_sharers == 8


def test_a_memory_share_needs_nothing_more_than_everybody_gets(tmp_path):
    asked = share(MEM, Mode.CGPU, unit_ids(1, Kind.MEMORY_CGPU, 2, 5, 7))
    assert driver(tmp_path).prepare(asked) == asked
    assert {"ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_CONTAINER"} <= asked.env.keys()


@pytest.mark.parametrize(
    ("percent", "rule", "weight"), [(30, 5, "6"), (5, 5, "1"), (100, 5, "20"), (30, 1, "30"), (5, 10, "1")]
)
def test_compute_becomes_a_weight(tmp_path, percent, rule, weight):
    asked = share(CORE, Mode.CORE_MEM, unit_ids(0, Kind.CORE_CORE_MEM, *range(percent)))
    got = driver(tmp_path, percent_per_weight=rule).prepare(asked)
    assert got.env == {**asked.env, "ALIYUN_COM_GPU_SCHD_WEIGHT": weight}


def test_the_nodes_label_turns_isolation_off(tmp_path):
    made = driver(tmp_path)
    made.desire(Need(disabled=True))
    assert made.prepare(share(MEM, Mode.CGPU, unit_ids(0, Kind.MEMORY_CGPU, 1))).env["CGPU_DISABLE"] == "true"


def test_a_start_is_verified_against_the_module(tmp_path):
    module = CgpuModule(tmp_path, gpus=1)
    made = driver(module.proc)
    first = share(MEM, Mode.CGPU, unit_ids(0, Kind.MEMORY_CGPU, 1))
    made.verify(first, Starting())
    with pytest.raises(IsolationError, match="does not have GPU 1"):
        made.verify(share(MEM, Mode.CGPU, unit_ids(1, Kind.MEMORY_CGPU, 1)), Starting())
    module.write("0/max_inst", "1")
    module.instance(0, "0123456789ab")
    with pytest.raises(IsolationError, match="1 instances on GPU 0 and takes 1"):
        made.verify(first, Starting())
    module.remove()
    with pytest.raises(IsolationError, match="not loaded"):
        made.verify(first, Starting())


def test_the_module_is_watched(tmp_path):
    module = CgpuModule(tmp_path)
    layers: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    made = driver(module.proc)
    made.start(layers.put)
    try:
        first = layers.get(timeout=PATIENCE_S)
        assert first.keeps(Mode.CGPU)
        assert first.isolates == frozenset(Isolates)
        module.remove()
        while layers.get(timeout=PATIENCE_S).installed:
            pass  # seen while it went
        module.proc.with_name("gone").rename(module.proc)
        while layers.get(timeout=PATIENCE_S) != first:
            pass
    finally:
        made.stop()


def test_a_module_that_hangs_is_reported_and_holds_up_no_other(tmp_path):
    before = set(threading.enumerate())
    module = CgpuModule(tmp_path)
    made = driver(module.proc, answer_s=0.2)
    version = module.proc / "version"
    version.unlink()
    os.mkfifo(version)  # reading it blocks until somebody writes
    layer = made.look()
    assert layer.installed
    assert not layer.keeps(Mode.CGPU)
    assert "has not answered for 0.2 s" in (layer.problem or "")
    with pytest.raises(IsolationError, match="drain and reboot"):
        made.verify(share(MEM, Mode.CGPU, unit_ids(0, Kind.MEMORY_CGPU, 1)), Starting())
    readers = sum(thread.name == "cgpu-read" for thread in set(threading.enumerate()) - before)
    assert readers == 1, "no second one waits beside the first"
    with version.open("w", encoding="ascii") as pipe:  # it answers now, and later readers find a file again
        module.write("again", "1.5.10")
        (module.proc / "again").replace(version)
        pipe.write("1.5.10\n")
    until = time.monotonic() + PATIENCE_S
    while not made.look().keeps(Mode.CGPU):
        assert time.monotonic() < until


def test_cdi_is_not_seen_by_the_wrapper(tmp_path):
    layer = driver(CgpuModule(tmp_path).proc, cdi=True).look()
    assert not layer.keeps(Mode.CGPU)
    assert "--device-strategy device-nodes" in (layer.problem or "")


def test_gpus_of_unequal_size_are_refused(tmp_path):
    asked = share(MEM, Mode.CGPU, unit_ids(0, Kind.MEMORY_CGPU, 1))
    unequal = replace(asked, env={**asked.env, "ALIYUN_COM_GPU_MEM_DEV": "16,24"})
    with pytest.raises(IsolationError, match="one size for all GPUs"):
        driver(tmp_path).prepare(unequal)


def test_a_gpu_that_is_new_is_looked_for_at_once(tmp_path):
    layers: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    made = CgpuIsolation(proc=CgpuModule(tmp_path, gpus=1).proc, period_s=1000.0)
    made.start(layers.put)
    try:
        assert not layers.get(timeout=PATIENCE_S).left_out
        made.desire(Need(gpus=(gpu(0), gpu(1))))
        assert set(layers.get(timeout=PATIENCE_S).left_out) == {uuid(1)}
    finally:
        made.stop()
