"""One agent a test, on the one cluster of the run; every test ends with an audit."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuagent._pb import podresources_v1_pb2 as pb
from gpuagent._pb import podresources_v1_pb2_grpc as pb_grpc
from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kubelet.pod_resources import PodResources
from tests.e2e.agent import kept_agent
from tests.e2e.agent.allocation_audit import audit
from tests.e2e.agent.process import RBAC, RESOURCES, AgentProcess
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster
from tests.e2e.conftest import FAILED, OLDER_KUBELET

MODE, PLACEMENT = "ack.node.gpu.schedule", "ack.node.gpu.placement"
KUBELET_DIR = Path("/var/lib/kubelet")
_NVIDIA_MAJOR = 195
POD_RESOURCES = KUBELET_DIR / "pod-resources" / "kubelet.sock"
_NEVER_STARTS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "never-starts"},
    "handler": "absent",
}


@pytest.fixture(params=["1.36", OLDER_KUBELET], scope="module")
def kubelet(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The kubelet version under the test; the cluster's own afterwards."""
    version, own = str(request.param), cluster.kubelet_version
    if version != own:
        cluster.restart_kubelet(version)
    yield version
    if version != own:
        cluster.restart_kubelet(own)


@pytest.fixture(scope="session")
def device_nodes() -> Iterator[None]:
    """The driver's device nodes, so that containers really get some. Where there is no driver, nothing is behind them."""
    # NVIDIA's own numbers: the kernel permits a container the numbers that it was given.
    numbers = {f"nvidia{n}": os.makedev(_NVIDIA_MAJOR, n) for n in range(8)}
    numbers["nvidiactl"] = os.makedev(_NVIDIA_MAJOR, 255)
    # The kernel chooses the number of these.
    numbers |= {name: os.makedev(1, 3) for name in ("nvidia-uvm", "nvidia-uvm-tools")}
    made = [Path("/dev") / name for name in numbers if not (Path("/dev") / name).exists()]
    for path in made:
        os.mknod(path, 0o666 | stat.S_IFCHR, numbers[path.name])
    yield
    for path in made:
        path.unlink()


@pytest.fixture(scope="package")
def rbac(cluster: Cluster) -> Iterator[None]:
    cluster.apply_rbac(RBAC)
    yield
    for manifest in RBAC:
        cluster.api("DELETE", cluster.client.path_of(manifest))


@pytest.fixture
def pod_resources(cluster: Cluster) -> Iterator[PodResources]:
    with connect_pod_resources() as client:
        yield client


def connect_pod_resources() -> closing[PodResources]:
    return closing(PodResources(POD_RESOURCES))


class Node:
    """Cluster, agent and kubelet's allocations together, for one test."""

    def __init__(self, cluster: Cluster, pod_resources: PodResources, agent: AgentProcess) -> None:
        self.cluster = cluster
        self.pod_resources = pod_resources
        self.agent = agent
        self.pods: list[str] = []
        self.spread_pods: set[str] = set()

    def run(self, manifest: dict[str, Any], phase: str = "Running", timeout: float = WAIT_S) -> dict[str, Any]:
        """Create a pod and wait for its phase."""
        name = manifest["metadata"]["name"]
        self.pods.append(name)
        pod = self.cluster.run_pod(manifest, timeout)
        assert pod["status"]["phase"] == phase, pod["status"]
        return pod

    def end(self, *names: str) -> None:
        """All at once, and wait until none is there any more."""
        for name in names:
            self.cluster.delete_pod(name, grace=1, timeout=0)
        for name in names:
            self.cluster.wait_pod_gone(name)
            self.pods.remove(name)

    def label(self, mode: str | None, placement: str | None = None) -> None:
        self.agent.disturbed = True
        self.cluster.label_node({MODE: mode, PLACEMENT: placement})

    def switch(self, mode: str, **amounts: int) -> None:
        """Label the node and wait until exactly these amounts (by short name) are on it, every other one zero."""
        self.label(mode)
        # Two modes may sell the same amounts: the node's status alone does not tell the old from the new.
        self.agent.wait(lambda page: page["mode"] == mode and page["switch"]["phase"] != "settling")
        self.wait_amounts(**amounts)

    def wait_amounts(self, **amounts: int) -> None:
        wanted = dict.fromkeys((*RESOURCES, "nvidia.com/gpu"), "0")
        wanted |= {_FULL[short]: str(amount) for short, amount in amounts.items()}
        # The node may still show what an agent before this one offered: kubelet itself knows first. It writes only what
        # differs from its own view of the node, and a watch that broke silently shows it former amounts for up to 45 s.
        end = time.monotonic() + WAIT_S
        while kubelet_has() != {name: int(amount) for name, amount in wanted.items() if amount != "0"}:
            assert time.monotonic() < end, f"wanted {wanted}, kubelet has {kubelet_has()}: {self.agent.status()}"
            time.sleep(0.05)
        try:
            self.cluster.wait_node(lambda node: _has(node, wanted))
        except TimeoutError as err:
            shown = {name: self.cluster.node()["status"]["allocatable"].get(name) for name in wanted}
            raise TimeoutError(f"wanted {wanted}, the node has {shown}; agent: {self.agent.status()}") from err

    def restart_agent(self, end: Callable[[], object]) -> None:
        """Restart the agent, and wait until kubelet counts its devices. `end` is the agent's `stop` or `kill`.

        The agent is ready when it has sent its devices. If kubelet admits a pod before it reads them, the pod fails.
        The scheduler may send it one at once, because the Node still shows what the agent advertised before.
        """
        end()
        self.agent.start()
        self.wait_counted()

    def wait_counted(self) -> None:
        """Until the agent is ready, and kubelet counts its healthy devices."""
        self.agent.wait_ready()

        def counted(page: dict[str, Any]) -> bool:
            healthy = {name: view["healthy"] for name, view in page["resources"].items() if view["healthy"]}
            # Kubelet does not count the GPUs of claims among the devices of plugins.
            healthy.pop(DRA_DRIVER, None)
            return kubelet_has() == healthy

        self.agent.wait(counted)

    def audit(self) -> list[Holding]:
        page = self.agent.wait(lambda page: "gpus" in page)  # an agent that has just begun has none yet
        uuids = {key_of(gpu["uuid"]): gpu["uuid"] for gpu in page["gpus"]}
        return audit(self.cluster, self.pod_resources, uuids, self.spread_pods)

    def gpus_of(self, pod: str, container: str = "main") -> list[str]:
        return self.cluster.exec_env(pod, container)["NVIDIA_VISIBLE_DEVICES"].split(",")


def kubelet_has() -> dict[str, int]:
    """Healthy devices by resource, as kubelet's device manager counts them now."""
    answer = _allocatable()
    ids: dict[str, set[str]] = {}
    for entry in answer.devices:
        ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
    return {name: len(found) for name, found in ids.items()}


def _allocatable() -> pb.AllocatableResourcesResponse:
    """Kubelet's answer; asked again while it starts, and where its rate limit refuses."""
    end = time.monotonic() + WAIT_S
    while True:
        with grpc.insecure_channel(
            f"unix:{POD_RESOURCES}", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            try:
                return stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=WAIT_S)
            except grpc.RpcError:
                if time.monotonic() > end:
                    raise
        time.sleep(0.05)


def _has(node: dict[str, Any], wanted: dict[str, str]) -> bool:
    status = node["status"]
    return all(status["allocatable"].get(n) == v and n in status["capacity"] for n, v in wanted.items())


_FULL = {
    "mem": "aliyun.com/gpu-mem",
    "core": "aliyun.com/gpu-core.percentage",
    "gpu": "aliyun.com/gpu",
    "exclusive": "nvidia.com/gpu",
}


@pytest.fixture
def never_starts(cluster: Cluster) -> Iterator[str]:
    cluster.apply(_NEVER_STARTS)
    yield "never-starts"
    cluster.api("DELETE", cluster.client.path_of(_NEVER_STARTS))


@contextmanager
def running_node(
    cluster: Cluster,
    pod_resources: PodResources,
    workdir: Path,
    box: str,
    mode: str | None = None,
    flags: tuple[str, ...] = (),
) -> Iterator[Node]:
    """An agent on a box; at the end: audit, pods gone, agent stopped."""
    kept_agent.end()
    with _used_node(cluster, pod_resources, workdir, box, mode, flags) as node:
        try:
            yield node
        finally:
            node.agent.disturbed = True


@contextmanager
def _used_node(
    cluster: Cluster,
    pod_resources: PodResources,
    workdir: Path,
    box: str,
    mode: str | None,
    flags: tuple[str, ...],
) -> Iterator[Node]:
    """An agent on a box; at the end: audit, pods gone, agent left to the next test or stopped."""
    agent = kept_agent.take(box, mode, flags)
    cluster.label_node({MODE: mode, PLACEMENT: None})
    if agent is None:
        _forget_gpus(cluster)
        agent = AgentProcess(cluster, workdir, box, flags)
        agent.made_for = kept_agent.made_for(box, mode, flags)
        agent.start()
    node = Node(cluster, pod_resources, agent)
    try:
        # Until then the Node may show what an agent before this one advertised, and kubelet rejects pods that come.
        node.wait_counted()
        yield node
        if node.agent.running:
            node.audit()
    except BaseException:
        node.agent.disturbed = True
        raise
    finally:
        try:
            node.end(*node.pods)
        finally:
            kept_agent.leave(node.agent)  # a second agent would fail all later tests


@pytest.fixture(scope="package")
def kept(rbac: None, device_nodes: None) -> Iterator[None]:
    """The agent that tests leave to each other goes with the rights that it has."""
    yield
    kept_agent.end()


@pytest.fixture
def make_node(
    request: pytest.FixtureRequest, cluster: Cluster, kept: None, pod_resources: PodResources, tmp_path: Path
) -> Iterator[Callable[..., Node]]:
    """Gives an agent on a box, for one test. It may be the one of the test before; `fresh` is one that has just begun."""
    with ExitStack() as nodes:
        numbers = count()

        def make(
            box: str = "dgx-a100", mode: str | None = None, flags: tuple[str, ...] = (), *, fresh: bool = False
        ) -> Node:
            if fresh:
                kept_agent.end()
            workdir = tmp_path / f"agent-{next(numbers)}"
            node = nodes.enter_context(_used_node(cluster, pod_resources, workdir, box, mode, flags))
            nodes.callback(_leave_none_after_failure, request.node, node)
            return node

        yield make


def _forget_gpus(cluster: Cluster) -> None:
    """Of a test with another box: the agent would report them as missing."""
    forgotten = {"metadata": {"annotations": {KNOWN_GPUS_ANNOTATION: None}}}
    cluster.client.expect("PATCH", f"/api/v1/nodes/{NODE_NAME}", forgotten, "application/merge-patch+json")


def _leave_none_after_failure(test: pytest.Item, node: Node) -> None:
    if test.stash.get(FAILED, False):
        node.agent.disturbed = True
