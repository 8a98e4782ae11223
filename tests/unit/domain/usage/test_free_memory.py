"""Free memory of GPUs: what the cluster's page and the plugin call the largest free share."""

from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.domain.usage.free_memory import free_memory
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    node_json,
    unit_ids,
    uuid,
)
from tests.unit.domain.dra.prepared_claims import claiming, prepared

GIB = 1 << 30


def free_gib(node: NodeUnderTest) -> list[float | None]:
    """In the order of the GPUs' UUIDs."""
    free = free_memory(node.state)
    return [None if free[name] is None else free[name] / GIB for name in sorted(free)]


def of_pods(count: int, kind: Kind = Kind.MEMORY_SHARE) -> tuple[Holding, ...]:
    """One unit of GPU 0 for each of so many pods."""
    return tuple(holding(f"p{n}", unit_ids(0, kind, n), MEM) for n in range(count))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [(Mode.SHARE, Kind.MEMORY_SHARE), (Mode.CGPU, Kind.MEMORY_CGPU), (Mode.MPS, Kind.MEMORY_MPS)],
)
def test_a_shared_gpu_has_what_no_pod_holds(mode: Mode, kind: Kind) -> None:
    held = holding("a", unit_ids(0, kind, 0, 1, 2), MEM)
    assert free_gib(in_force(mode).holdings(held)) == [13, 16]


@pytest.mark.parametrize(("mode", "gib"), [(Mode.SHARE, 16), (Mode.CGPU, 16.5)])
def test_the_rest_that_makes_no_unit_is_free_where_a_pod_would_get_it(mode: Mode, gib: float) -> None:
    """With isolation, a pod that has all units has all memory."""
    assert free_gib(in_force(mode, [gpu(0, memory_mib=16 * 1024 + 512)])) == [gib]


def test_a_gpu_with_as_many_pods_as_may_share_it_has_nothing() -> None:
    """However much memory is left."""
    node = in_force(Mode.SHARE, max_pods_per_gpu=3)
    assert free_gib(node.holdings(*of_pods(2))) == [14, 16]
    assert free_gib(node.holdings(*of_pods(3))) == [0, 16]


def test_a_gpu_with_as_many_containers_as_its_isolation_takes_has_nothing() -> None:
    """One pod may have several of them."""
    node = in_force(Mode.MPS)
    layers = {name: replace(layer, max_sharers=2) for name, layer in node.state.isolation.layers.items()}
    node.isolation(layers=layers)
    containers = [holding("a", unit_ids(0, Kind.MEMORY_MPS, n), MEM, container=f"c{n}") for n in range(2)]
    assert free_gib(node.holdings(*containers[:1])) == [15, 16]
    assert free_gib(node.holdings(*containers)) == [0, 16]


def test_a_gpu_without_compute_left_has_nothing() -> None:
    memory = holding("a", unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1), MEM)
    half = holding("a", unit_ids(0, Kind.CORE_CORE_MEM, *range(50)), CORE)
    every = holding("a", unit_ids(0, Kind.CORE_CORE_MEM, *range(100)), CORE)
    node = in_force(Mode.CORE_MEM)
    assert free_gib(node.holdings(memory, half)) == [14, 16]
    assert free_gib(node.holdings(memory, every)) == [0, 16]


def test_a_whole_gpu_is_free_or_it_is_not() -> None:
    held = holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE)
    assert free_gib(in_force(Mode.TOPOLOGY).holdings(held)) == [0, 16]


def test_free_memory_that_the_driver_does_not_report_is_not_known() -> None:
    """As of GPUs that share the memory of the host: the GPU is free, so that 0 would be wrong."""
    node = in_force(Mode.TOPOLOGY, [gpu(0, memory_mib=0), gpu(1, memory_mib=0)])
    held = holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE)
    assert free_gib(node.holdings(held)) == [0, None]


def test_an_unhealthy_a_fenced_and_a_partitioned_gpu_have_nothing() -> None:
    node = in_force(Mode.SHARE, [*box(3), gpu(3, mig=True)])
    node.send(ev.FenceRead(Fence(indexes=frozenset("2")), node.now)).send(ev.XidRaised(uuid(0), 79, node.now))
    assert free_gib(node) == [0, 16, 0, 0]


@pytest.mark.parametrize("mode", [Mode.DEFAULT, Mode.DRA])
def test_a_mode_without_gpus_for_schedulers_says_nothing(mode: Mode) -> None:
    assert free_gib(in_force(mode)) == []


def test_a_gpu_of_a_claim_has_nothing_for_shares() -> None:
    """The claim was prepared while the node was in mode `dra`."""
    node = in_force(Mode.SHARE)
    node.send(ev.ClaimsPrepared((prepared("c", gpu(0)),), node.now)).pods(claiming("p", "c"))
    assert free_gib(node) == [0, 16]


def test_a_gpu_of_the_former_mode_has_nothing_until_its_pod_ends() -> None:
    node = in_force(Mode.SHARE).holdings(*of_pods(1))
    node.send(ev.NodeSeen(node_json(mode="topology"), node.now)).wait(60).holdings(*of_pods(1)).wait(60)
    assert free_gib(node) == [0, 16]
    assert free_gib(node.holdings().wait(60)) == [16, 16]


@pytest.mark.parametrize("isolates", [frozenset[Isolates](), frozenset({Isolates.MEMORY})])
@pytest.mark.parametrize("is_trial", [False, True])
def test_nothing_is_free_while_the_mode_is_not_isolated(isolates: frozenset[Isolates], *, is_trial: bool) -> None:
    """Not even in a trial, in which kubelet gives units: no pod gets them with all that the mode promises."""
    node = in_force(Mode.CORE_MEM, isolates=isolates, allow_unisolated=is_trial)
    assert bool(node.offer(MEM)) == is_trial
    assert free_gib(node) == [0, 0]


def test_nothing_is_free_while_kubelet_does_not_take_the_list() -> None:
    node = in_force(Mode.SHARE)
    node.send(ev.RegistrationChanged(MEM, "kubelet does not answer", node.now))
    assert free_gib(node) == [0, 0]


def test_nothing_is_free_before_kubelets_allocations_are_known() -> None:
    assert free_gib(NodeUnderTest(Mode.SHARE).inventory(*box())) == [0, 0]
