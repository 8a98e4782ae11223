"""What the Node says that pods hold: the pods whose annotations once said something else, until they are gone."""

import random

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.reconcile.pod_annotations import writes
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.scheduling.held_gpus import (
    HELD_GPUS_ANNOTATION,
    MOST_TEXT,
    HeldGpu,
    held_gpus,
    held_gpus_text,
)
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, GROUP_ANNOTATION, Kind, Mode
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, holding, in_force, pod_json, unit_ids

MS, MM, CM, GT = Kind.MEMORY_SHARE, Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM, Kind.WHOLE_TOPOLOGY
V2, V2_CORE = an.MEMORY_ANNOTATION, an.CORE_ANNOTATION
DECIDED = {V2: '{"0":{"1":4}}'}
"""What a scheduler wrote on pod `a`, which has these units."""


def node_with(*held, mode=Mode.SHARE, **policy):
    return in_force(mode, box(4), **policy).holdings(*held)


def on_gpu_1(pod="a", *, units=4):
    return holding(pod, unit_ids(1, MS, *range(units)))


def published(node: NodeUnderTest):
    return held_gpus(node_annotations(node.state))


def pod(annotations=None, name="a", version="", **given):
    made = pod_json(name, {MEM: 4}, annotations=annotations, **given)
    made["metadata"]["resourceVersion"] = version
    return made


def test_a_pod_that_got_what_its_scheduler_decided_is_not_published():
    assert published(node_with(on_gpu_1()).pods(pod(DECIDED))) == {}


@pytest.mark.parametrize(
    "forged",
    [
        {V2: '{"0":{"3":4}}'},
        {V2: '{"0":{"0":9,"1":9}}'},
        {V2: "no JSON"},
        {},
        {**DECIDED, an.DECIDED_ANNOTATION: "another"},
        {an.V1_GPU: "1"},
    ],
)
def test_a_pod_whose_annotations_say_something_else_or_nothing_is_published_until_it_is_gone(forged):
    node = node_with(on_gpu_1()).pods(pod(DECIDED, version="1"))
    assert published(node.pods(pod(forged, version="2"))) == {"uid-a": (HeldGpu(1, memory=4),)}
    assert published(node.pods(pod(DECIDED, version="3"))) == {"uid-a": (HeldGpu(1, memory=4),)}
    assert published(node.pods()) == {}


def test_a_pod_that_has_ended_is_not_published():
    node = node_with(on_gpu_1()).pods(pod())
    assert published(node) == {"uid-a": (HeldGpu(1, memory=4),)}
    assert published(node.pods(pod(phase="Failed"))) == {}


@pytest.mark.parametrize("seed", range(20))
def test_what_a_tenant_edits_on_a_published_pod_changes_nothing_on_the_node(seed):
    chance = random.Random(seed)
    node = node_with(on_gpu_1()).pods(pod({V2: '{"0":{"3":4}}'}, version="0"))
    before = node_annotations(node.state)
    for version in range(1, 30):
        texts = {key: chance.choice(["0", "true", '{"0":{"2":4}}', DECIDED[V2], "x" * 20_000]) for key in an.KEYS}
        some = {key: text for key, text in texts.items() if chance.random() < 0.5}
        labels = {GPU_COUNT_LABEL: chance.choice(["1", "2", "x"])}
        node.pods(pod(some, version=str(version), labels=labels))
        assert node_annotations(node.state) == before


def test_a_pod_that_the_node_shows_when_the_agent_starts_stays_published():
    node = node_with(on_gpu_1())
    shown = {"annotations": {HELD_GPUS_ANNOTATION: held_gpus_text({"uid-a": (HeldGpu(0, memory=1),)})}}
    seen = ev.NodeSeen({"metadata": {"name": "n", "labels": {"ack.node.gpu.schedule": "share"}, **shown}}, 0.0)
    for step in (lambda: node.send(seen), lambda: node.pods(pod(DECIDED))):
        step()
    assert published(node) == {"uid-a": (HeldGpu(1, memory=4),)}
    late = node_with(on_gpu_1()).pods(pod(DECIDED)).send(seen)
    assert published(late) == {"uid-a": (HeldGpu(1, memory=4),)}


def test_until_the_pods_are_read_the_last_text_stays():
    assert HELD_GPUS_ANNOTATION not in node_annotations(node_with(on_gpu_1()).state)


def test_whole_gpus_and_compute_are_published():
    whole = node_with(
        holding("a", [*unit_ids(1, GT, 0), *unit_ids(3, GT, 0)], WHOLE), mode=Mode.TOPOLOGY, annotate_pods=False
    )
    named = pod_json("a", {WHOLE: 2}, annotations={GROUP_ANNOTATION: "3,1"})
    assert published(whole.pods(named)) == {}
    assert published(whole.pods(pod_json("a", {WHOLE: 2}, annotations={GROUP_ANNOTATION: "0,1"}))) == {
        "uid-a": (HeldGpu(1, whole=True), HeldGpu(3, whole=True))
    }
    both = node_with(
        holding("a", unit_ids(1, MM, 0, 1)), holding("a", unit_ids(1, CM, *range(5)), CORE), mode=Mode.CORE_MEM
    )
    asked = {MEM: 2, CORE: 5}
    decided = {V2: '{"0":{"1":2}}', V2_CORE: '{"0":{"1":5}}'}
    assert published(both.pods(pod_json("a", asked, annotations=decided))) == {}
    assert published(both.pods(pod_json("a", asked))) == {"uid-a": (HeldGpu(1, memory=2, core=5),)}


def test_a_sidecar_on_another_gpu_which_no_annotation_can_say_is_published():
    here = holding("a", unit_ids(1, MS, 0, 1))
    near = holding("a", unit_ids(1, MS, 5), container="side-0")
    far = holding("a", unit_ids(2, MS, 5), container="side-0")
    asked = pod_json("a", {MEM: 2}, sidecar=({MEM: 1},), annotations={V2: '{"0":{"1":2}}'})
    assert published(node_with(here, near).pods(asked)) == {}
    assert published(node_with(here, far).pods(asked)) == {"uid-a": (HeldGpu(1, memory=2), HeldGpu(2, memory=1))}


def test_the_text_is_bounded_and_read_back():
    pods = {f"{n:08d}-0000-0000-0000-000000000000": (HeldGpu(n % 8, memory=4),) for n in range(2000)}
    text = held_gpus_text(pods)
    assert len(text) <= MOST_TEXT
    read = held_gpus({HELD_GPUS_ANNOTATION: text})
    assert isinstance(read, dict)
    assert len(read) > 500
    assert read == {uid: pods[uid] for uid in list(pods)[: len(read)]}
    assert len(held_gpus_text({f"uid-{n}": tuple(HeldGpu(gpu, 4, 4) for gpu in range(16)) for n in range(20)})) < 5000


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":2,"pods":{}}', '{"v":1,"pods":{"u":[[0,1]]}}', "[" * 10_000])
def test_any_other_text_is_malformed(text):
    assert isinstance(held_gpus({HELD_GPUS_ANNOTATION: text}), an.Malformed)


def test_pods_of_one_name_in_two_namespaces_are_published_by_their_uids():
    node = node_with(on_gpu_1())
    theirs = pod({V2: '{"0":{"3":4}}'})
    theirs["metadata"] |= {"namespace": "theirs", "uid": "uid-theirs"}
    assert published(node.pods(pod({V2: '{"0":{"2":4}}'}), theirs)) == {"uid-a": (HeldGpu(1, memory=4),)}
    assert writes(node.state)[0].uid == "uid-a"
