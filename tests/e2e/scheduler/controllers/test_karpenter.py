"""Karpenter adds nodes for GPU pods, by the objects of the example."""

from collections.abc import Callable, Iterator

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.build import bin_dir
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import EVENTS, ControlPlane
from tests.e2e.scheduler.controllers.karpenter import GPUS, UNITS, Karpenter, advertise
from tests.e2e.scheduler.nodes import share_node
from tests.e2e.scheduler.pods import pod, why
from tests.e2e.scheduler.replica import Replica

TOLERATIONS = [{"key": "gpu-scheduler", "operator": "Equal", "value": "only", "effect": "NoSchedule"}]
HALF = UNITS // 2 + 1
"""Units of which one GPU has room for one pod."""


@pytest.fixture
def karpenter(control_plane: ControlPlane) -> Iterator[Karpenter]:
    missing = [name for name in ("karpenter", "karpenter.yaml") if not (bin_dir() / name).exists()]
    if missing:
        pytest.fail(f"run `python tests/e2e/build.py {' '.join(missing)}` first", pytrace=False)
    karpenter = Karpenter(control_plane)
    karpenter.start()
    yield karpenter
    karpenter.stop()


def test_a_pod_gets_a_node_where_none_has_as_much_in_all(
    control_plane: ControlPlane,
    karpenter: Karpenter,
    make_replica: Callable[..., Replica],
) -> None:
    """There is no node with GPUs at first."""
    make_replica("a")
    control_plane.add_pods([_pod("first", UNITS)])
    (node,) = karpenter.new_nodes(1)
    advertise(control_plane, node)
    bound = _wait_bound(control_plane, "first")
    assert bound["first"]["spec"]["nodeName"] == node


def test_a_pod_gets_no_node_where_units_are_only_scattered(
    control_plane: ControlPlane,
    karpenter: Karpenter,
    make_replica: Callable[..., Replica],
) -> None:
    """Karpenter compares totals, so it takes the pod for one that kube-scheduler is about to bind."""
    _scatter(control_plane, make_replica)
    control_plane.add_pods([_pod("large", UNITS)])
    karpenter.wait_until_nominated("large", "node/old")
    pods = control_plane.pods.wait(lambda pods: "free on one GPU" in why(pods, "large"))
    assert karpenter.claims() == []
    assert "nodeName" not in pods["large"]["spec"]


def test_a_placeholder_has_karpenter_add_a_node_and_goes_before_a_second_one(
    control_plane: ControlPlane,
    karpenter: Karpenter,
    make_replica: Callable[..., Replica],
) -> None:
    """The pod waits half a minute before. Then Karpenter sees a pod of one unit more than the node has in all."""
    replica = _scatter(control_plane, make_replica, "--placeholder-namespace", "kube-system")
    control_plane.add_pods([_pod("large", UNITS)])
    (node,) = karpenter.new_nodes(1)
    pods = control_plane.pods.wait(lambda _: True)
    (placeholder,) = (pod for name, pod in pods.items() if name.startswith("gpu-placeholder-"))
    free = GPUS * (UNITS - HALF)
    limits = placeholder["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {GPU_MEM: str(free + 1), "cpu": "100m"}
    assert placeholder["spec"]["tolerations"][0]["key"] == "gpu-scheduler"
    advertise(control_plane, node)
    bound = _wait_bound(control_plane, "large")
    assert bound["large"]["spec"]["nodeName"] == node
    pods = control_plane.pods.wait(lambda pods: placeholder["metadata"]["name"] not in pods)
    assert len(pods) == GPUS + 1
    assert len(karpenter.claims()) == 1
    path = f"{EVENTS}?fieldSelector=reason=ScaleUpRequested"

    def pods_of_events() -> list[str]:
        return [event["involvedObject"]["name"] for event in control_plane.client.expect("GET", path)["items"]]

    replica.extender.wait_for(lambda: bool(pods_of_events()))
    assert pods_of_events() == ["large"]


def _scatter(
    control_plane: ControlPlane,
    make_replica: Callable[..., Replica],
    *flags: str,
) -> Replica:
    """A node whose GPUs have less than half free each."""
    control_plane.add_nodes([share_node("old", GPUS, UNITS)])
    replica = make_replica("a", *flags)
    names = [f"half-{number}" for number in range(GPUS)]
    control_plane.add_pods(_pod(name, HALF) for name in names)
    _wait_bound(control_plane, *names)
    return replica


def _pod(name: str, units: int) -> Json:
    return pod(name, {GPU_MEM: units, "cpu": "100m"}, tolerations=TOLERATIONS)


def _wait_bound(control_plane: ControlPlane, *names: str) -> dict[str, Json]:
    return control_plane.pods.wait(
        lambda pods: all(name in pods and pods[name]["spec"].get("nodeName") for name in names)
    )
