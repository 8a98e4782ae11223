"""Kubelet with control groups for pods, as on an ordinary node, and what it leaves of them: nothing."""

import glob
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest
from tests.e2e.cluster.cgroups import USERS, Cgroups, hierarchies

RESOURCE = "example.com/watched"
PLUGINS = Path("/var/lib/kubelet/device-plugins")
SOCKET = "watched.sock"


@pytest.fixture
def pod_cgroups(cluster: Cluster) -> Iterator[Cluster]:
    cluster.restart_kubelet(pod_cgroups=True)
    yield cluster
    cluster.restart_kubelet(pod_cgroups=False)


class Plugin(rpc.DevicePluginServicer):
    """Offers one device, and notes which control groups of pods exist whenever a container is about to start."""

    def __init__(self, cgroup_root: Path) -> None:
        self._root = cgroup_root
        self._ended = threading.Event()
        self.seen: list[set[str]] = []

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(4))
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{PLUGINS / SOCKET}")
        self._server.start()
        options = pb.DevicePluginOptions(pre_start_required=True)
        request = pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=RESOURCE, options=options)
        with grpc.insecure_channel(f"unix://{PLUGINS / 'kubelet.sock'}") as channel:
            rpc.RegistrationStub(channel).Register(request, timeout=WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.stop(0).wait()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.DevicePluginOptions(pre_start_required=True)

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID="only", health="Healthy")])
        self._ended.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()])

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        # Unlike `Path.glob`, this goes on when kubelet removes the group of a former pod meanwhile.
        groups = glob.glob("kubepods/**/pod*", root_dir=self._root, recursive=True)
        self.seen.append({Path(group).name for group in groups})
        return pb.PreStartContainerResponse()


def test_a_pod_has_a_control_group_with_its_uid_before_its_containers_start(pod_cgroups: Cluster) -> None:
    cluster = pod_cgroups
    with Plugin(cluster.cgroup_root) as plugin:
        cluster.wait_node(lambda node: node["status"]["allocatable"].get(RESOURCE) == "1")
        pod = cluster.run_pod(pod_manifest("watched", {RESOURCE: 1}))
        assert pod["status"]["phase"] == "Running"
        group = f"pod{pod['metadata']['uid']}"
        # Kubelet may not have removed those of former pods yet.
        assert plugin.seen
        assert all(group in groups for groups in plugin.seen)
        container = cluster.container("watched")
        # The container is in a group of its own below, in each hierarchy that kubelet and runtime use.
        lines = Path(f"/proc/{container.pid}/cgroup").read_text().splitlines()
        own = {line.rpartition(":")[2] for line in lines if group in line}
        assert [Path(path).parts[-2:] for path in own] == [(group, container.id)]
        assert cluster.cgroup_root.joinpath("kubepods").exists()
        cluster.delete_pod("watched", grace=1)


def test_what_a_cluster_made_is_gone_when_it_ends_and_nothing_else() -> None:
    other, cgroups = Cgroups(), Cgroups()
    for made in (other, cgroups):
        made.claim()
        made.make_kubelet_root()
    for hierarchy in hierarchies():
        _below(hierarchy, cgroups).joinpath("kubepods", "pod-1").mkdir(parents=True)
    cgroups.remove()
    assert not [hierarchy for hierarchy in hierarchies() if _below(hierarchy, cgroups).exists()]
    # Another cluster has just made its own, which is empty as yet.
    assert all(_below(hierarchy, other).exists() for hierarchy in hierarchies())
    other.remove()
    assert not [hierarchy for hierarchy in hierarchies() if _below(hierarchy, other).exists()]


def _below(hierarchy: Path, cgroups: Cgroups) -> Path:
    return hierarchy / cgroups.kubelet_root.removeprefix("/")


def test_controllers_of_cgroup_v2_are_enabled_for_pods_and_disabled_by_the_last_cluster() -> None:
    unified = [hierarchy for hierarchy in hierarchies() if (hierarchy / "cgroup.controllers").exists()]
    before = {hierarchy: enabled(hierarchy) for hierarchy in unified}
    cgroups = Cgroups()
    cgroups.claim()
    cgroups.make_kubelet_root()
    assert all(controllers(_below(hierarchy, cgroups)) == controllers(hierarchy) for hierarchy in unified)
    cgroups.remove()
    # Another cluster may be running, and ends later: not before this test has looked, because this one claims the groups.
    onlooker = Cgroups()
    onlooker.claim()
    try:
        for hierarchy in unified:
            # What is enabled meanwhile is noted before.
            are_enabled = enabled(hierarchy)
            to_be_disabled = {line.split()[1] for line in USERS.read_text().splitlines() if str(hierarchy) in line}
            assert are_enabled - before[hierarchy] <= to_be_disabled
    finally:
        onlooker.remove()


def enabled(group: Path) -> set[str]:
    """The controllers of the groups below."""
    return set((group / "cgroup.subtree_control").read_text().split())


def controllers(group: Path) -> set[str]:
    """Its own controllers."""
    return set((group / "cgroup.controllers").read_text().split())
