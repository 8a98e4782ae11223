"""A pod's annotations and labels count as the agent first saw them: what its author edits later changes nothing."""

import random

import pytest

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.sharing.mode import (
    GPU_COUNT_LABEL,
    GROUP_ANNOTATION,
    JOB_LABEL,
    REPLICAS_LABEL,
    VISIBLE_ANNOTATION,
    Mode,
)
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import MEM, WHOLE, box, in_force, owner, pod_json

GPUS = 4


def waiting(mode: Mode, name: str, gpu: int, namespace: str = "ml") -> dict:
    """A pod that is bound, with a decision for this GPU."""
    if mode is Mode.TOPOLOGY:
        made = pod_json(name, {WHOLE: 1}, annotations={GROUP_ANNOTATION: str(gpu)})
    else:
        made = pod_json(name, {MEM: 16}, annotations={an.MEMORY_ANNOTATION: f'{{"0":{{"{gpu}":16}}}}'})
    made["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}", "resourceVersion": "1"}
    return made


def edit(chance: random.Random, pod: dict) -> None:
    gpu = chance.randrange(GPUS)
    forged = {
        an.MEMORY_ANNOTATION: [f'{{"0":{{"{gpu}":16}}}}', '{"0":{"0":16,"1":16,"2":16,"3":16}}', "x"],
        GROUP_ANNOTATION: [str(gpu), "0,1,2,3", "9"],
        VISIBLE_ANNOTATION: ["0,1,2,3"],
        an.DECIDED_ANNOTATION: [pod["metadata"]["uid"], "another"],
        an.MIRROR_ANNOTATION: ["x"],
        an.V1_GPU: [str(gpu)],
    }
    meta = pod["metadata"]
    for key, values in forged.items():
        if chance.random() < 0.5:
            meta["annotations"][key] = chance.choice(values)
        elif chance.random() < 0.3:
            meta["annotations"].pop(key, None)
    meta["labels"] = chance.choice([{}, {GPU_COUNT_LABEL: "4"}, {JOB_LABEL: "j", REPLICAS_LABEL: "2"}])
    meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)


@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.TOPOLOGY])
@pytest.mark.parametrize("seed", range(10))
def test_pods_get_what_was_decided_whatever_is_edited_before_kubelet_asks(mode, seed):
    """Each GPU is for one pod; two of the pods have one name, in two namespaces."""
    chance = random.Random(seed)
    kubelet = FakeKubelet(in_force(mode, box(GPUS)))
    names = [("a", "ml"), ("b", "ml"), ("c", "ml"), ("c", "theirs")]
    pods = [waiting(mode, name, gpu, namespace) for gpu, (name, namespace) in enumerate(names)]
    kubelet.pods(*pods)
    served = 0
    for _ in range(40):
        edit(chance, chance.choice(pods))
        kubelet.pods(*pods)
        if chance.random() < 0.2:
            kubelet.node.inventory(*box(GPUS))  # decisions are read again
            kubelet.publish()
        if chance.random() < 0.3 and served < 2:
            who, size = owner(names[served][0]), 1 if mode is Mode.TOPOLOGY else 16
            grant = kubelet.serve(who, WHOLE if mode is Mode.TOPOLOGY else MEM, size)
            assert [gpu.index for gpu in grant.gpus] == [served]
            kubelet.read_allocations()
            served += 1
    assert served == 2


@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.TOPOLOGY])
def test_a_pod_without_a_decision_gets_none_by_an_edit_and_reserves_nothing(mode):
    kubelet = FakeKubelet(in_force(mode, box(GPUS)))
    resource, size = (WHOLE, GPUS) if mode is Mode.TOPOLOGY else (MEM, 16)
    sly, victim = (pod_json(name, {resource: size}) for name in ("sly", "victim"))
    kubelet.pods(sly, victim)
    everything = {GROUP_ANNOTATION: "0,1,2,3", an.MEMORY_ANNOTATION: '{"0":{"0":16}}'}
    sly["metadata"]["annotations"] = everything
    kubelet.pods(sly, victim)
    assert kubelet.allocator.occupancy().reserved(resource, None) == {}
    assert not kubelet.snap.pod_index.decided
    assert len(kubelet.serve(owner("victim"), resource, size).gpus) == (GPUS if mode is Mode.TOPOLOGY else 1)


def test_whole_gpus_that_kubelet_lost_are_given_again_by_its_former_allocations_and_not_by_an_edit():
    kubelet = FakeKubelet(in_force(Mode.TOPOLOGY, box(GPUS)))
    pod = pod_json("a", {WHOLE: 2})
    kubelet.pods(pod)
    had = {gpu.index for gpu in kubelet.serve(owner("a"), WHOLE, 2).gpus}
    kubelet.read_allocations()
    others = ",".join(str(n) for n in range(GPUS) if n not in had)
    pod["metadata"]["annotations"] = {GROUP_ANNOTATION: others, an.DECIDED_ANNOTATION: "uid-a"}
    kubelet.pods(pod)
    kubelet.node.wait(300)
    kubelet.end("a")
    kubelet.read_allocations()
    assert {gpu.index for gpu in kubelet.serve(owner("a"), WHOLE, 2).gpus} == had
