"""Backend misc, on which a container's own limit replaces that of its pod, wherever it comes from."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpuagent.host.limits_client import LimitsClient, Target
from gpuagent.limits_helper.probe import NAME as PROBE
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.attacks import (
    GPU,
    MIB,
    attack,
    attacking_pod,
    enter,
    share,
    wait_ready,
    wait_unused,
)
from tests.e2e.agent.limits.helper import Helper
from tests.e2e.cluster import WAIT_S, Cluster

pytestmark = pytest.mark.parametrize("helper", ["misc"], indirect=True)
_DEAD = 60
"""Dead control groups: more than a pod makes."""


@pytest.fixture
def node(limited_node: Node, helper: Helper) -> Iterator[Node]:
    helper.load_driver(reused=100)
    yield limited_node
    for name in limited_node.pods:
        limited_node.cluster.delete_pod(name, timeout=0)
    wait_unused(helper)


def leave_limits(cluster: Cluster, helper: Helper, size: int) -> None:
    """Control groups with limits, which end."""
    groups = [cluster.cgroup_root / f"dead-{number}" for number in range(_DEAD)]
    for group in groups:
        group.mkdir()
        helper.inject(fault="hook", path=str(group), limit=str(size // MIB), gpu=0)
    for group in groups:
        group.rmdir()


@pytest.mark.parametrize("units", [1, 4, 79])
def test_a_dead_pods_limit_is_not_that_of_a_new_one(node: Node, helper: Helper, units: int) -> None:
    """Neither a larger nor a smaller one, nor one that is just as large."""
    leave_limits(node.cluster, helper, share(units))
    node.run(attacking_pod("heir", helper, attack("nothing")))
    wait_ready(node, "heir")
    enter(node, "heir", attack("plain"))
    assert helper.used(GPU) == share()


def test_a_limit_that_nvidias_hook_took_from_the_environment_is_set_right(node: Node, helper: Helper) -> None:
    """NVIDIA's toolkit sets the limit of a container by its environment, whoever wrote that."""
    pod = node.run(attacking_pod("hooked", helper, attack("nothing")))
    wait_ready(node, "hooked")
    container = node.cluster.container("hooked").id
    uid = pod["metadata"]["uid"]
    group = next(node.cluster.cgroup_root.glob(f"kubepods/*/pod{uid}/{container}"))
    helper.inject(fault="hook", path=str(group), limit=str(share(80) // MIB), gpu=0)
    wait_limit(helper, uid, container)
    enter(node, "hooked", attack("plain"))
    assert helper.used(GPU) == share()


def test_kubelet_leaves_the_cgroup_alone_on_which_limits_are_tried(node: Node, helper: Helper) -> None:
    """It stands beside those of pods, where kubelet removes what is left of pods that it does not know."""
    pods_root = node.cluster.cgroup_root / "kubepods"
    probe = pods_root / PROBE
    identity = probe.stat().st_ino
    left_over = pods_root / f"pod{uuid.uuid4()}"
    left_over.mkdir()
    end = time.monotonic() + WAIT_S
    while left_over.exists():
        assert time.monotonic() < end, "kubelet does not remove cgroups of unknown pods"
        time.sleep(0.1)
    assert probe.stat().st_ino == identity
    with closing(LimitsClient(helper.socket, deadline_s=WAIT_S)) as client:
        assert client.describe().pods_root == pods_root


def wait_limit(helper: Helper, pod: str, container: str) -> None:
    """Wait until the driver limits the container to its pod's share."""
    end = time.monotonic() + WAIT_S
    with closing(LimitsClient(helper.socket, deadline_s=WAIT_S)) as client:
        while (limit := client.get(Target(GPU, pod, container))).hard != share():
            assert time.monotonic() < end, limit
            time.sleep(0.05)
