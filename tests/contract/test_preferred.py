"""Conformance checks 30 to 35: GetPreferredAllocation and PreStartContainer."""

from collections.abc import Callable

import grpc
import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL, PLACEMENT_LABEL
from gpuagent.kubelet.pod_resources import PodResources
from standin.kubelet.pods import StartError
from tests.contract.harness import MEM, VERSIONS, Isolating, Node, box, ids_on, pod, wait_for

MakeNode = Callable[..., Node]

PREFERRING = ["1.36", "1.37"]


def state_of(one: Node, *free: int) -> list[str]:
    """The ids that kubelet would offer with so many free on each GPU."""
    ids = one.ids(MEM)
    return [i for uuid, n in zip(one.uuids, free, strict=True) for i in ids_on(uuid, ids)[len(ids_on(uuid, ids)) - n :]]


def counts(one: Node, ids: list[str]) -> list[int]:
    return [len(ids_on(uuid, ids)) for uuid in one.uuids]


def test_30_binpack_takes_the_fullest_gpu_that_fits(node: MakeNode) -> None:
    """binpack; free 15/15, 6/15, 0/15, 4/15; size 4: exactly 4 available ids, all on the GPU with 4 free."""
    one = node("1.36", box(4, 15))
    one.run()
    one.offers(mem=60)
    available = state_of(one, 15, 6, 0, 4)
    chosen = one.prefer(MEM, available, 4)
    assert len(set(chosen)) == len(chosen) == 4
    assert set(chosen) <= set(available)
    assert counts(one, chosen) == [0, 0, 0, 4]


def test_31_spread_takes_the_emptiest_gpu(node: MakeNode) -> None:
    """spread, the same state: 4 ids on the emptiest GPU; and with the label changed back, binpack again."""
    one = node("1.36", box(4, 15), labels={MODE_LABEL: "share", PLACEMENT_LABEL: "spread"})
    agent = one.run()
    one.offers(mem=60)
    available = state_of(one, 15, 6, 0, 4)
    assert counts(one, one.prefer(MEM, available, 4)) == [4, 0, 0, 0]
    one.label("share", **{PLACEMENT_LABEL: None})
    wait_for(lambda: agent.status()["placement"] == "binpack")
    assert counts(one, one.prefer(MEM, available, 4)) == [0, 0, 0, 4]


def test_32_ids_that_must_be_included_are(node: MakeNode) -> None:
    """must_include of 2 on GPU 1, size 5: both, the rest on GPU 1, 5 in all, a subset of what is available."""
    one = node("1.36", box(4, 15))
    one.run()
    one.offers(mem=60)
    available = state_of(one, 15, 6, 0, 4)
    must = ids_on(one.uuids[1], available)[-2:]
    chosen = one.prefer(MEM, available, 5, must)
    assert set(must) <= set(chosen) <= set(available)
    assert counts(one, chosen) == [0, 5, 0, 0]


@pytest.mark.parametrize("version", PREFERRING)
def test_33_enough_in_all_but_on_no_gpu_is_refused_readably(node: MakeNode, version: str) -> None:
    """Free in total enough, on no single GPU: an error with a text for users, which fails the pod at admission."""
    one = node(version, box(4, 15))
    one.run()
    one.offers(mem=60)
    with pytest.raises(grpc.RpcError) as caught:
        one.prefer(MEM, state_of(one, 3, 6, 0, 4), 8)
    for text in ("asks for 8", "13 free", "no single GPU", "GPU 1: 6", "Ask for 6 or less"):
        assert text in caught.value.details()
    outcome = one.kubelet.admit(pod("p", {MEM: 16}))
    assert not outcome
    assert "no single GPU" in outcome.failed
    assert one.kubelet.admit(pod("q", {MEM: 15}))
    assert not one.kubelet.crashes


def test_34_ids_that_were_just_allocated_are_avoided(node: MakeNode) -> None:
    """Kubelet offers ids that were handed out a moment ago: avoided while others exist."""
    one = node("1.36", box(2, 15))
    one.run()
    one.offers(mem=30)
    for _ in range(3):
        everything = sorted(one.ids(MEM))
        given = one.prefer(MEM, everything, 5)
        one.allocate(MEM, given)
        again = one.prefer(MEM, everything, 5)
        assert not set(given) & set(again)
        one.allocate(MEM, again)
        break


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("version", PREFERRING)
def test_34_a_double_allocation_is_prevented(node: MakeNode, version: str, known: bool) -> None:
    """Kubelet loses a reservation (a pod has just ended, and somebody lists pod-resources during Allocate): it offers
    these ids again, and the next pod gets others."""
    labels = {MODE_LABEL: "cgpu"} if known else None
    one = node(version, box(2, 15), seed=34, double_allocation=True, labels=labels)
    driver = Isolating()
    one.run(driver, mode=None if known else "cgpu")
    one.offers(mem=30)
    exporter = PodResources(one.kubelet.pod_resources_socket)

    def admit(name: str) -> frozenset[str]:
        asked = pod(name, {MEM: 3})
        outcome = one.kubelet.admit(one.bind(asked) if known else asked)
        assert outcome, outcome.failed
        return outcome.containers["c0"].ids[MEM]

    ended = pod("ended", {MEM: 3})
    assert one.kubelet.admit(one.bind(ended) if known else ended)
    driver.on_prepare = lambda grant: (one.end(ended), exporter.list())  # type: ignore[assignment, return-value]
    robbed = admit("robbed")
    driver.on_prepare = lambda grant: None
    following = [admit(f"p{n}") for n in range(3)]
    exporter.close()
    assert not any(robbed & ids for ids in following)
    assert all(len(holders) == 1 for holders in one.kubelet.holders(MEM).values())


@pytest.mark.parametrize("version", ["1.30", "1.36"])
def test_34_a_double_allocation_that_cannot_be_avoided_becomes_an_event(node: MakeNode, version: str) -> None:
    """Kubelet offers nothing but ids that a living pod was given 2 s ago: refused, and an Event says so."""
    one = node(version, box(1, 15), labels={MODE_LABEL: "share"})
    one.run()
    one.offers(mem=15)
    first = one.bind(pod("first", {MEM: 5}))
    outcome = one.kubelet.admit(first)
    assert outcome, outcome.failed
    held = sorted(outcome.containers["c0"].ids[MEM])
    one.kubelet.receive(one.bind(pod("second", {MEM: 4})))
    with pytest.raises(grpc.RpcError, match="first"):
        one.prefer(MEM, held, 4)
    assert one.event("GPURefused", "first")["involvedObject"]["name"] == "second"


@pytest.mark.parametrize("version", VERSIONS)
def test_35_a_container_waits_for_its_isolation(node: MakeNode, version: str) -> None:
    """The pre-start hook fails twice, then works: two errors, the third start passes, the pod has not
    failed."""
    one = node(version, box(1, 24))
    driver = Isolating()
    one.run(driver, mode="cgpu")
    one.offers(mem=24)
    asked = pod("p", {MEM: 4})
    assert one.kubelet.admit(asked)
    driver.failures = 2
    for _ in range(2):
        with pytest.raises(StartError, match="the isolation layer is not ready"):
            one.kubelet.start_container(asked, "c0")
    granted = one.kubelet.start_container(asked, "c0")
    assert granted.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert str(driver.verified[-1]) == "default/p[c0]"


def test_many_containers_of_a_pod_that_nothing_shows_are_one_pod(node: MakeNode) -> None:
    """The API server is away: kubelet's allocations say whose they are, before a GPU seems to have too many pods."""
    one = node("1.36", box(1, 80), labels={MODE_LABEL: "share"})
    one.run(max_pods_per_gpu=3)
    one.offers(mem=80)
    one.server.stop()
    assert one.kubelet.admit(pod("first", *[{MEM: 1}] * 30))
    assert one.kubelet.admit(pod("second", *[{MEM: 1}] * 30))
    assert one.kubelet.admit(pod("third", {MEM: 1}))
    assert "has 3 pods already" in one.kubelet.admit(pod("fourth", {MEM: 1})).failed
