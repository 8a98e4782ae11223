"""The chart's helper for memory limits: what it may, what the agent beside it may not, and that limits are set."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.simulation import boxes
from tests.e2e.agent.conftest import Node
from tests.e2e.chart.release import Release
from tests.e2e.cluster import Cluster, pod_manifest
from tests.e2e.cluster.cgroups import pods_hierarchy

MEM = "aliyun.com/gpu-mem"
BOX = "limits-misc"
CGROUPS = Path("/sys/fs/cgroup")
SYS_ADMIN = 1 << 21
SYS_NICE = 1 << 23
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def pod_cgroups(cluster: Cluster) -> Iterator[Cluster]:
    """Kubelet makes a cgroup for each pod."""
    cluster.restart_kubelet(pod_cgroups=True)
    yield cluster
    cluster.restart_kubelet(pod_cgroups=False)


@pytest.fixture
def node(pod_cgroups: Cluster, installed: Callable[..., Node]) -> Node:
    pods = (pod_cgroups.cgroup_root / "kubepods").relative_to(pods_hierarchy())
    limits = {"enabled": True, "podsCgroup": str(pods)}
    node = installed("cgpu", limits=limits, settings={"simulate": BOX, "isolation": "limits"})
    if pods_hierarchy() != CGROUPS:
        mount_one_hierarchy(node)
    return node


def mount_one_hierarchy(node: Node) -> None:
    """With cgroup v1: let the pod see one hierarchy where cgroup v2 is on nodes that can limit memory."""
    release: Any = node.agent
    path = f"/apis/apps/v1/namespaces/{release.namespace}/daemonsets/gpuagent"
    volume = {"name": "cgroups", "hostPath": {"path": str(pods_hierarchy())}}
    patch = {"spec": {"template": {"spec": {"volumes": [volume]}}}}
    release.cluster.client.expect("PATCH", path, patch, "application/strategic-merge-patch+json")
    release.wait_rolled_out()


def rights(node: Node, container: str) -> tuple[set[int], str, str]:
    """Capabilities, whether new ones can be gained, and the seccomp mode of a container of the agent's pod."""
    lines = Path(f"/proc/{process_of(node, container)}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    capabilities = {int(fields[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd")}
    return capabilities, fields["NoNewPrivs"], fields["Seccomp"]


def process_of(node: Node, container: str) -> int:
    """The process of a container of the agent's pod."""
    release: Any = node.agent
    return int(release.cluster.container(release.pod()["metadata"]["name"], container, release.namespace).pid)


def python(node: Node, container: str, code: str) -> tuple[int, str]:
    """Run a line of Python in a container of the agent's pod."""
    release: Release = node.agent  # type: ignore[assignment]
    name, namespace = release.pod()["metadata"]["name"], release.namespace
    done = release.cluster.execute(name, "python3", "-c", code, container=container, namespace=namespace)
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def test_the_helper_sets_limits_with_two_capabilities_and_the_agent_has_none(node: Node) -> None:
    gpus = boxes.load(BOX).gpus
    node.wait_amounts(mem=sum(gpu.memory_mib // 1024 for gpu in gpus))
    assert rights(node, "gpuagent") == ({0}, "1", "2")
    assert rights(node, "memory-limits") == ({SYS_ADMIN | SYS_NICE}, "1", "2")

    node.run(pod_manifest("limited", {MEM: 4}))
    (uuid,) = node.gpus_of("limited")
    uid = node.cluster.pod("limited")["metadata"]["uid"]
    code, text = python(
        node,
        "gpuagent",
        "from gpuagent.host.limits_client import LimitsClient, Target; "
        f"print(LimitsClient().get(Target({uuid!r}, {uid!r})).hard)",
    )
    assert (code, int(text) // 2**20) == (0, gpus[0].memory_mib * 4 // (gpus[0].memory_mib // 1024)), text

    # As kubelet's probe asks.
    code, text = python(
        node, "memory-limits", "import sys; from gpuagent import limits_command as c; sys.exit(c.run(['--check']))"
    )
    assert code == 0, text
    assert text.count("memory can be limited") == len(gpus)

    code, text = python(node, "gpuagent", "import os; os.mkdir('/sys/fs/cgroup/forged')")
    assert (code, "Read-only file system" in text) == (1, True), text
    assert python(node, "memory-limits", f"import os; print(os.listdir({TOKEN!r}))") == (0, "[]\n")
    assert "token" in python(node, "gpuagent", f"import os; print(os.listdir({TOKEN!r}))")[1]


def helper_restarts(pod: dict[str, Any]) -> int:
    """How often kubelet has restarted the helper; -1 while not every container of the pod is ready."""
    statuses = {status["name"]: status for status in pod["status"]["containerStatuses"]}
    is_ready = all(status["ready"] for status in statuses.values())
    return int(statuses["memory-limits"]["restartCount"]) if is_ready else -1


def test_limits_outlive_the_helper_and_the_agent(node: Node) -> None:
    release: Any = node.agent
    node.wait_amounts(mem=88)
    pod = release.pod()
    name = pod["metadata"]["name"]
    starts = max(helper_restarts(pod), 0)
    helper = release.cluster.container(name, "memory-limits", release.namespace)
    helper.kill()
    # Kubelet starts it again, and the pod is ready again.
    release.cluster.wait_pod(name, lambda pod: helper_restarts(pod) > starts, namespace=release.namespace)
    release.wait_rolled_out()
    node.wait_amounts(mem=88)
    node.run(pod_manifest("later", {MEM: 4}))
