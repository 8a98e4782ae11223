"""Start, stop and restart."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from standin.kubelet.kubelet import Kubelet
from standin.kubelet.pods import Container, Pod
from tests.standin.sample_plugin import CORE, MEM, SamplePlugin, devices

MakeKubelet = Callable[..., Kubelet]
MakePlugin = Callable[..., SamplePlugin]


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def test_a_stopped_kubelet_leaves_a_stale_socket(kubelet: MakeKubelet) -> None:
    one = kubelet()
    inode = one.socket.stat().st_ino
    assert accepts(one.socket)
    assert accepts(one.pod_resources_socket)
    one.stop()
    assert one.socket.exists()
    assert not accepts(one.socket)
    one.start()
    assert one.socket.stat().st_ino != inode
    one.stop()


def test_a_socket_without_kubelet_is_stale(root: Path) -> None:
    one = Kubelet(root)
    one.make_stale()
    assert one.socket.exists()
    assert not accepts(one.socket)
    inode = one.socket.stat().st_ino
    with one:
        assert accepts(one.socket)
        assert one.socket.stat().st_ino != inode
        with pytest.raises(RuntimeError):
            one.start()


def test_events_that_mean_nothing(kubelet: MakeKubelet) -> None:
    one = kubelet()
    inode = one.socket.stat().st_ino
    one.touch_socket()
    one.recreate_socket_event()
    assert one.socket.stat().st_ino == inode
    assert accepts(one.socket)


def test_a_stale_socket_leaves_connections_alone(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    plugin(devices("a"))
    assert one.wait(lambda: one.allocatable(MEM) == 1)
    one.make_stale()
    assert not accepts(one.socket)
    assert one.streams(MEM) == 1
    one.listen()
    assert accepts(one.socket)


@pytest.mark.parametrize(("version", "kept"), [("1.18", False), ("1.36", True)])
def test_start_clears_the_directory(version: str, kept: bool, root: Path) -> None:
    directory = root / "device-plugins"
    (directory / "sub").mkdir(parents=True)
    (directory / "state.json").write_text("{}")
    left = []
    for path in (directory / "old.sock", directory / "sub" / "safe.sock"):
        left.append(socket.socket(socket.AF_UNIX))
        left[-1].bind(str(path))
    with Kubelet(root, version):
        assert not (directory / "old.sock").exists()
        assert (directory / "sub" / "safe.sock").exists()
        assert (directory / "state.json").exists() is kept
    for one in left:
        one.close()


@pytest.mark.parametrize("version", ["1.18", "1.36", "1.37"])
def test_restart_keeps_ids_and_drops_the_rest(version: str, kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet(version)
    made = plugin(devices("a", "b", "c"))
    assert one.wait(lambda: one.allocatable(MEM) == 3)
    pod = Pod("p", containers=(Container("c", {MEM: 2}),))
    before = one.admit(pod)
    one.restart(delay_s=0.05)
    assert not (one.plugins_dir / made.endpoint).exists()
    assert (one.capacity(MEM), one.allocatable(MEM), one.streams(MEM)) == (0, 0, 0)
    assert set(one.holders(MEM)) == before.containers["c"].ids[MEM]
    (again,) = one.readmit()
    assert again.containers["c"] == before.containers["c"]
    plugin(devices("a", "b", "c"))
    assert one.wait(lambda: one.allocatable(MEM) == 3)
    other = one.admit(Pod("q", containers=(Container("c", {MEM: 1}),)))
    assert other.containers["c"].ids[MEM] == frozenset("abc") - before.containers["c"].ids[MEM]


def test_readmission_fails_what_does_not_run_before_the_list(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    plugin(devices("a", "b"))
    assert one.wait(lambda: one.allocatable(MEM) == 2)
    one.admit(Pod("runs", containers=(Container("c", {MEM: 1}),)))
    init = Container("i", {MEM: 1})
    one.admit(Pod("init", init_containers=(init,), containers=(Container("c", {MEM: 1}),)))
    one.restart()
    runs, failed = one.readmit()
    assert runs
    assert failed.reason == "UnexpectedAdmissionError"
    assert "no healthy devices present; cannot allocate unhealthy devices" in failed.failed
    assert one.readmit(running=())[0].failed


def test_the_checkpoint_has_kubelets_form(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    plugin(devices("a", numa=(1,)))
    plugin(devices("x"), CORE)
    assert one.wait(lambda: one.allocatable(MEM) == one.allocatable(CORE) == 1)
    one.admit(Pod("p", uid="u", containers=(Container("c", {MEM: 1, CORE: 1}),)))
    data = json.loads((one.plugins_dir / "kubelet_internal_checkpoint").read_text())["Data"]
    assert data["RegisteredDevices"] == {MEM: ["a"], CORE: ["x"]}
    entries = {one["ResourceName"]: one for one in data["PodDeviceEntries"]}
    assert entries[MEM]["DeviceIDs"] == {"1": ["a"]}
    assert entries[CORE]["DeviceIDs"] == {"-1": ["x"]}
    assert (entries[MEM]["PodUID"], entries[MEM]["ContainerName"]) == ("u", "c")


def test_long_paths_are_named(root: Path) -> None:
    with pytest.raises(ValueError, match="longer than the 107 bytes"):
        Kubelet(root / ("x" * 100)).start()


def test_the_pods_of_somebody_else(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    active = {"default-p"}
    one = kubelet(pods=lambda: active)
    plugin(devices("a"))
    assert one.wait(lambda: one.allocatable(MEM) == 1)
    assert one.admit(Pod("p", containers=(Container("c", {MEM: 1}),)))
    assert not one.admit(Pod("q", containers=(Container("c", {MEM: 1}),)))
    active.clear()
    assert one.admit(Pod("q", containers=(Container("c", {MEM: 1}),)))


def test_a_plugin_may_remove_its_socket_while_the_directory_is_cleaned(
    kubelet: MakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that ends, or that moves to a new socket, does so at any moment."""
    one = kubelet()
    one.stop()
    of_plugin = one.plugins_dir / "plugin.sock"
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(str(of_plugin))
    is_socket = Path.is_socket

    def is_socket_and_then_gone(path: Path) -> bool:
        answer = is_socket(path)
        if path == of_plugin:
            path.unlink()
        return answer

    monkeypatch.setattr(Path, "is_socket", is_socket_and_then_gone)
    one.start()
    assert accepts(one.socket)
    one.stop()
