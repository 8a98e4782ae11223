"""Backend misc: new control groups at the kernel addresses of dead ones, whose limits they inherit."""

from collections.abc import Iterator

import pytest

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
from tests.e2e.cluster import Cluster

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
