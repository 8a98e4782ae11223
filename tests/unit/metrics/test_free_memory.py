"""Free memory of GPUs: what the cluster's page and the plugin call the largest free share."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.metrics.free_memory import free_memory
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, holding, in_force, unit_ids, uuid

GIB = 1 << 30


def free_gib(node: NodeUnderTest) -> dict[str, float]:
    """By the minor numbers of the GPUs."""
    return {minor: free / GIB for (_, minor), free in free_memory(node.state).items()}


def of_pods(count: int) -> tuple[Holding, ...]:
    """One unit of GPU 0 for each of so many pods."""
    return tuple(holding(f"p{n}", unit_ids(0, Kind.MEMORY_SHARE, n), MEM) for n in range(count))


def test_a_shared_gpu_has_what_no_pod_holds() -> None:
    held = holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2), MEM)
    assert free_gib(in_force(Mode.SHARE).holdings(held)) == {"0": 13, "1": 16}


def test_a_gpu_with_as_many_pods_as_may_share_it_has_nothing() -> None:
    """However much memory is left."""
    node = in_force(Mode.SHARE, max_pods_per_gpu=3)
    assert free_gib(node.holdings(*of_pods(2)))["0"] == 14
    assert free_gib(node.holdings(*of_pods(3)))["0"] == 0


def test_a_gpu_without_compute_left_has_nothing() -> None:
    memory = holding("a", unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1), MEM)
    half = holding("a", unit_ids(0, Kind.CORE_CORE_MEM, *range(50)), CORE)
    every = holding("a", unit_ids(0, Kind.CORE_CORE_MEM, *range(100)), CORE)
    node = in_force(Mode.CORE_MEM)
    assert free_gib(node.holdings(memory, half))["0"] == 14
    assert free_gib(node.holdings(memory, every))["0"] == 0


def test_a_whole_gpu_is_free_or_it_is_not() -> None:
    held = holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE)
    assert free_gib(in_force(Mode.TOPOLOGY).holdings(held)) == {"0": 0, "1": 16}


def test_an_unhealthy_and_a_fenced_gpu_have_nothing() -> None:
    node = in_force(Mode.SHARE, box(3))
    node.send(ev.FenceRead(Fence(indexes=frozenset("2")), node.now)).send(ev.XidRaised(uuid(0), 79, node.now))
    assert free_gib(node) == {"0": 0, "1": 16, "2": 0}


@pytest.mark.parametrize("mode", [Mode.DEFAULT, Mode.DRA])
def test_a_mode_without_gpus_for_schedulers_says_nothing(mode: Mode) -> None:
    assert free_gib(in_force(mode)) == {}
