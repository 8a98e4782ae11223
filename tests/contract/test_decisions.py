"""Schedulers' decisions about shares, with the whole agent: kubelet's allocations, environment and annotations agree."""

import random
from collections.abc import Callable

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION, V1_ASSIGNED, V1_ASSUMED, V1_GPU, V1_UNITS
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, MODE_LABEL
from standin.kubelet.pods import Container, Pod
from tests.contract.harness import MEM, Node, box, ids_on, in_thread, pod, wait_for

MakeNode = Callable[..., Node]


def by_v2(*gpus: int, size: int) -> dict[str, str]:
    """Containers of one size, each on its GPU."""
    inner = ",".join(f'"{number}":{{"{gpu}":{size}}}' for number, gpu in enumerate(gpus))
    return {MEMORY_ANNOTATION: f"{{{inner}}}"}


def by_v1(gpu: int, units: int) -> dict[str, str]:
    """An assume time far ahead: no clock of this machine matters."""
    return {V1_GPU: str(gpu), V1_UNITS: str(units), V1_ASSUMED: "9" * 19, V1_ASSIGNED: "false"}


def sharing(node: MakeNode, version: str, gpus: int = 4, **settings: object) -> Node:
    one = node(version, box(gpus, 16), labels={MODE_LABEL: "share"})
    one.run(**settings)
    one.offers(mem=gpus * 16)
    return one


def admit(one: Node, asked: Pod) -> list[int]:
    """Minor numbers of the containers' GPUs, by kubelet's allocations; the environment says the same."""
    outcome = one.kubelet.admit(asked)
    assert outcome, outcome.failed
    found = []
    for name, granted in outcome.containers.items():
        (gpu,) = [n for n, uuid in enumerate(one.uuids) if ids_on(uuid, granted.ids[MEM])]
        assert granted.env["NVIDIA_VISIBLE_DEVICES"] == one.uuids[gpu], name
        found.append(gpu)
    return found


@pytest.mark.parametrize("version", ["1.19", "1.20", "1.30", "1.36", "1.37"])
def test_equal_pods_in_flight_get_their_gpus_in_any_order(node: MakeNode, version: str) -> None:
    """Ten pods of one size, bound in one order and admitted in another."""
    one = sharing(node, version)
    rng = random.Random(version)
    chosen = {n: rng.randrange(4) for n in range(10)}
    pods = {
        n: one.bind(pod(f"p{n}", {MEM: 3}), annotations=by_v1(gpu, 3) if n % 2 else by_v2(gpu, size=3))
        for n, gpu in chosen.items()
    }
    has = {n: admit(one, pods[n])[0] for n in rng.sample(range(10), 10)}
    assert has == chosen


@pytest.mark.parametrize("version", ["1.19", "1.30", "1.36"])
def test_a_pod_that_kubelet_has_seen_before_the_agent(node: MakeNode, version: str) -> None:
    """By what the agent has seen, one other pod alone can be meant."""
    one = sharing(node, version)
    waits = one.bind(pod("waits", {MEM: 3}), annotations=by_v1(2, 3))
    asked = pod("asked", {MEM: 3})
    with in_thread(lambda: admit(one, asked)) as has:
        one.bind(asked, annotations=by_v2(3, size=3))
        assert has() == [3]
    assert admit(one, waits) == [2]


@pytest.mark.parametrize("version", ["1.30", "1.36"])
def test_containers_init_containers_and_sidecars_of_a_pod(node: MakeNode, version: str) -> None:
    """Two containers on two GPUs; an init container hands its units to the first; a sidecar is where there is room."""
    one = sharing(node, version)
    asked = pod("a", {MEM: 4}, {MEM: 4}, init=[Container("init", {MEM: 4}), Container("side", {MEM: 2}, True)])
    init, side, first, second = admit(one, one.bind(asked, annotations=by_v2(2, 3, size=4)))
    assert (init, first, second) == (2, 2, 3)
    assert side in {2, 3}


def test_a_named_gpu_that_is_full_is_refused(node: MakeNode) -> None:
    one = sharing(node, "1.36", 2)
    assert admit(one, one.bind(pod("big", {MEM: 14}), annotations=by_v1(1, 14))) == [1]
    outcome = one.kubelet.admit(one.bind(pod("late", {MEM: 4}), annotations=by_v1(1, 4)))
    assert "a scheduler chose GPU 1 for it (annotation ALIYUN_COM_GPU_MEM_IDX), and GPU 1 has 2 free" in outcome.failed
    assert "default/late" in one.event("GPURefused", "GPU 1")["message"]


def test_what_is_no_decision_is_reported_by_an_event(node: MakeNode) -> None:
    one = sharing(node, "1.36", 2)
    assert admit(one, one.bind(pod("copy", {MEM: 4}), annotations=by_v1(1, 9))) == [0]
    assert "ALIYUN_COM_GPU_MEM_POD says 9" in one.event("GPUDecisionIgnored")["message"]


def test_what_is_reserved_is_left_to_the_pod_it_is_for(node: MakeNode) -> None:
    one = sharing(node, "1.36", 2)
    other = one.bind(pod("other", {MEM: 8}))
    decided = one.bind(pod("decided", {MEM: 12}), annotations=by_v1(0, 12))
    assert admit(one, other) == [1]
    assert admit(one, decided) == [0]


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("before", [{}, by_v2(0, size=5), by_v1(0, 5)], ids=["undecided", "v2", "v1"])
@pytest.mark.parametrize("edit", [by_v2(1, size=5), by_v1(1, 5) | {MEMORY_ANNOTATION: None}], ids=["v2", "v1"])
def test_an_edit_of_a_pod_that_has_its_gpu_moves_no_other_pod(
    node: MakeNode, before: dict[str, str], edit: dict[str, str | None], *, started: bool
) -> None:
    """The author of a pod writes that it has the GPU that is full; the agent may not correct it."""
    one = sharing(node, "1.36", 2)
    (agent,) = one.agents
    one.server.deny("patch", "pods")
    author = one.bind(pod("author", {MEM: 5}), annotations=before)
    assert admit(one, author) == [0]
    assert admit(one, one.bind(pod("full", {MEM: 16}), annotations=by_v2(1, size=16))) == [1]
    if started:
        one.kubelet.start_container(author, "c0")
        wait_for(
            lambda: any(h.owner.pod.name == "author" for h in agent.state.holdings.listed or ()),
            what="kubelet's record",
        )
    one.server.patch_pod("author", {"metadata": {"annotations": edit}})
    assert admit(one, one.bind(pod("decided", {MEM: 5}), annotations=by_v2(0, size=5))) == [0]


EVERYTHING = {MEMORY_ANNOTATION: '{"0":{"0":16,"1":16}}'}
HOSTILE: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "more than the node has": ({MEM: 800}, {MEMORY_ANNOTATION: '{"0":{"0":400,"1":400}}'}),
    "a mirror pod": ({MEM: 32}, EVERYTHING | {"kubernetes.io/config.mirror": "0"}),
    "a copy": ({MEM: 32}, EVERYTHING | {"gpuagent.io/decided": "the UID of another pod"}),
    "what kubelet rejects for another reason": ({MEM: 32}, EVERYTHING),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_pods_without_a_decision_are_admitted_beside_decisions_that_cannot_be_kept(node: MakeNode, kind: str) -> None:
    """One hostile pod comes with each of thirty others and two are there at any time; kubelet never asks for them."""
    one = sharing(node, "1.36", 2)
    limits, annotations = HOSTILE[kind]
    there: list[Pod] = []
    admitted = 0
    for n in range(30):
        if len(there) > 1:
            one.end(there.pop(0))
        hostile = pod(f"hostile-{n}", limits)
        there.append(one.bind(hostile, labels={GPU_COUNT_LABEL: "2"}, annotations=annotations))
        victim = one.bind(pod(f"victim-{n}", {MEM: 16}))
        outcome = one.kubelet.admit(victim)
        admitted += not outcome.failed
        one.end(victim)
    assert admitted == 30
