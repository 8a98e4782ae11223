"""Mode topology with real pods: the sets they get, and what kubelet's Topology Manager makes of them.

With a policy that has to do with NUMA nodes, kubelet settles on nodes before it asks: on the lowest one with enough free
GPUs, on both where no single one has enough. It then offers the GPUs of these nodes only; and where they are as many as
the pod wants, it takes them without asking at all.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL
from gpuagent.domain.sharing.units import parse_id
from tests.e2e.agent.allocation_audit import holdings
from tests.e2e.agent.conftest import Node, connect_pod_resources, running_node
from tests.e2e.cluster import Cluster, pod_manifest

GPU = "aliyun.com/gpu"
NONE, BEST_EFFORT, SINGLE = "none", "best-effort", "single-numa-node"
NOT_ALIGNED = "TopologyAffinityError"


@pytest.fixture(params=[NONE, BEST_EFFORT, SINGLE], scope="module")
def policy(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The Topology Manager's policy under the test; the cluster's own afterwards. Kubelet 1.36 throughout."""
    policy, own = str(request.param), cluster.topology_policy
    if policy != own:
        cluster.restart_kubelet(topology_policy=policy)
    yield policy
    if policy != own:
        cluster.restart_kubelet(topology_policy=own)


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest,
    policy: str,
    cluster: Cluster,
    rbac: None,
    device_nodes: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    """One agent for all tests on one box under one policy."""
    workdir = tmp_path_factory.mktemp("agent")
    with (
        connect_pod_resources() as pod_resources,
        running_node(cluster, pod_resources, workdir, request.param, "topology") as node,
    ):
        node.wait_amounts(gpu=8)
        yield node


@pytest.fixture
def node(shared: Node) -> Iterator[Node]:
    yield shared
    shared.audit()
    end(shared, *shared.pods)


on_dgx1v = pytest.mark.parametrize("shared", ["dgx1-v100"], indirect=True)
on_hgx = pytest.mark.parametrize("shared", ["hgx-h100"], indirect=True)


def place(node: Node, name: str, gpus: int, **more: Any) -> list[int]:
    """Run a pod; the indexes of its GPUs, in order (see `given`)."""
    node.run(pod_manifest(name, {GPU: gpus}, **more))
    return given(node, name)


def given(node: Node, name: str) -> list[int]:
    """Indexes of a pod's GPUs as its environment orders them; kubelet's allocations and the agent's page tell the same."""
    env = node.gpus_of(name)
    holder = f"default/{name}[main]"

    def shown(page: dict[str, Any]) -> bool:
        return {gpu["uuid"] for gpu in page["gpus"] if gpu["holders"] == [holder]} == set(env)

    page = node.agent.wait(shown, path="topology")
    gpus = {key_of(gpu["uuid"]): gpu for gpu in page["gpus"]}
    (held,) = (holding for holding in holdings(node.pod_resources) if str(holding.owner) == holder)
    keys = {device_id: unit.gpu_key for device_id in held.ids if (unit := parse_id(device_id))}
    assert sorted(gpus[key]["uuid"] for key in keys.values()) == sorted(env)
    uid = node.cluster.pod(name)["metadata"]["uid"]
    (entry,) = (entry for entry in node.cluster.checkpoint().entries if entry.pod_uid == uid)
    assert entry.ids == held.ids
    assert all(gpus[keys[i]]["numa_node"] == numa for numa, ids in entry.by_numa_node.items() for i in ids)
    return [gpus[key_of(uuid)]["index"] for uuid in env]


def end(node: Node, *names: str) -> None:
    """End pods; the agent has seen it."""
    node.end(*names)
    gone = {f"default/{name}[main]" for name in names}
    node.agent.wait(lambda page: all(gone.isdisjoint(gpu["holders"]) for gpu in page["gpus"]), path="topology")


def hold(node: Node, *indexes: int) -> None:
    """Hold these GPUs of a DGX-1V, one at least on each NUMA node, and no others.

    Kubelet comes to its second NUMA node when the first one is full.
    """
    first, second = [n for n in indexes if n < 4], [n for n in indexes if n >= 4]
    rest = sorted(set(range(4)) - set(first))
    for name, group in (("held-0", first), ("rest", rest), ("held-1", second)):
        named = {GROUP_ANNOTATION: ",".join(map(str, group))}
        assert sorted(place(node, name, len(group), annotations=named)) == group
    end(node, "rest")


def refused(node: Node, name: str, gpus: int, **more: Any) -> tuple[str, str]:
    """Run a pod that kubelet does not admit: the reason and the message."""
    status = node.run(pod_manifest(name, {GPU: gpus}, **more), phase="Failed")["status"]
    return status["reason"], status["message"]


def calls(node: Node, method: str = "") -> float:
    """How often kubelet has asked for GPUs."""
    lines = (node.agent.page("metrics") or b"").decode().splitlines()
    name = f'gpuagent_rpc_duration_seconds_count{{method="{method}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and "Alloc" in line)


@on_dgx1v
def test_pods_of_two_and_four_gpus_get_the_best_sets_on_a_dgx1v(policy: str, node: Node) -> None:
    assert place(node, "pair-0", 2) == [0, 3]
    assert place(node, "pair-1", 2) == [1, 2]
    assert place(node, "quad-0", 4) == [4, 5, 6, 7]
    end(node, "pair-0", "pair-1")
    assert place(node, "quad-1", 4) == [0, 1, 2, 3]


@on_dgx1v
def test_a_held_gpu_is_no_part_of_a_set_on_a_dgx1v(policy: str, node: Node) -> None:
    assert place(node, "single", 1) == [0]
    assert place(node, "quad", 4) == [4, 5, 6, 7]
    assert place(node, "pair", 2) == [1, 2]


@on_dgx1v
def test_a_pod_of_more_gpus_than_a_numa_node_has_is_kubelets_to_reject(policy: str, node: Node) -> None:
    before = calls(node)
    if policy == SINGLE:
        assert refused(node, "five", 5)[0] == NOT_ALIGNED
        assert calls(node) == before, "kubelet has asked"
    else:
        assert place(node, "five", 5) == [0, 3, 2, 1, 4]


@on_dgx1v
def test_the_best_pair_over_numa_nodes_is_given_where_the_policy_allows_it(policy: str, node: Node) -> None:
    hold(node, 2, 5, 6, 7)
    assert place(node, "first", 2) == ([0, 4] if policy == NONE else [0, 3]), "0-4 leaves 1-3, 0-3 leaves 1-4"
    before = calls(node, "GetPreferred")
    if policy == SINGLE:
        assert refused(node, "second", 2)[0] == NOT_ALIGNED
    else:
        assert place(node, "second", 2) == ([1, 3] if policy == NONE else [1, 4])
    assert calls(node, "GetPreferred") - before == (policy == NONE)


@on_dgx1v
def test_pods_of_a_job_are_placed_together(policy: str, node: Node) -> None:
    hold(node, 1, 6)
    if policy == NONE:
        assert [*place(node, "alone-0", 1), *place(node, "alone-1", 1)] == [5, 2], "pods of no job"
        end(node, "alone-0", "alone-1")
    pods = ["pytorch-dist-nccl-master-0", "pytorch-dist-nccl-worker-0"]
    for name in pods:
        node.pods.append(name)
        node.cluster.create_pod(of_a_job(name))
    for name in pods:
        node.cluster.wait_phase(name, "Running")
    assert sorted(given(node, pods[0]) + given(node, pods[1])) == ([2, 3] if policy == NONE else [0, 3])


def of_a_job(name: str) -> dict[str, Any]:
    """As the vendor's example of a PyTorchJob has its pods."""
    labels = {JOB_LABEL: "pytorch-dist-nccl", REPLICAS_LABEL: "2"}
    manifest = pod_manifest(name, {GPU: 1}, labels=labels, annotations={"sidecar.istio.io/inject": "false"})
    manifest["spec"] |= {"hostIPC": True, "hostNetwork": True, "hostPID": True}
    manifest["spec"] |= {"dnsPolicy": "ClusterFirstWithHostNet", "restartPolicy": "OnFailure"}
    return manifest


@on_dgx1v
def test_gpus_that_a_scheduler_named_are_granted_or_refused_with_the_reason(policy: str, node: Node) -> None:
    assert sorted(place(node, "named", 2, annotations={GROUP_ANNOTATION: "3,1"})) == [1, 3]
    reason, message = refused(node, "late", 1, annotations={GROUP_ANNOTATION: "3"})
    assert reason == "UnexpectedAdmissionError"
    assert "default/late[main] asks for 1 GPUs; the scheduler chose GPU 3 for its pod" in message
    assert "GPU 3 is not free" in message


@on_dgx1v
def test_gpus_named_on_another_numa_node_are_granted_without_a_policy_only(policy: str, node: Node) -> None:
    named = {GROUP_ANNOTATION: "5,7"}
    if policy == NONE:
        assert place(node, "named", 2, annotations=named) == [5, 7]
    else:
        reason, message = refused(node, "named", 2, annotations=named)
        assert reason == "UnexpectedAdmissionError"
        assert "kubelet does not offer GPU 5, GPU 7, though free" in message


@on_hgx
def test_pods_get_the_lowest_free_indexes_behind_nvswitches(policy: str, node: Node) -> None:
    assert place(node, "pair", 2) == [0, 1]
    assert place(node, "single", 1) == [2]
    # All links are alike there: only kubelet knows of a difference.
    assert place(node, "quad", 4) == ([3, 4, 5, 6] if policy == NONE else [4, 5, 6, 7])
