"""What is kept of a pod is little, whatever its author puts into it, and says what the pod says."""

import sys
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import Malformed
from gpuagent.domain.pods.parse_pod import kept, parse_pod
from gpuagent.domain.pods.pod import ContainerSpec, PodName
from gpuagent.domain.reconcile.pod_annotations import writes
from gpuagent.domain.sharing.mode import (
    GPU_COUNT_LABEL,
    GROUP_ANNOTATION,
    JOB_LABEL,
    REPLICAS_LABEL,
    VISIBLE_ANNOTATION,
    Kind,
    Mode,
)
from tests.unit.domain import hostile
from tests.unit.domain.builders import MEM, box, holding, in_force, pod_json, unit_ids

OURS = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu", "nvidia.com/gpu")
MIB = 1 << 20
REJECTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}


def read(pod):
    return kept(parse_pod(pod), OURS)


def size(value, seen=None):
    """Bytes of `value` and of all that it holds."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    parts = []
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, (tuple, list, frozenset, set)):
        parts = value
    elif is_dataclass(value):
        parts = [getattr(value, one.name) for one in fields(value)]
    return sys.getsizeof(value) + sum(size(part, seen) for part in parts)


def changed(*path, to):
    """A pod as people make them, with one part replaced."""
    pod = pod_json("a", {MEM: 4}, labels={"app": "x"})
    at = pod
    for key in path[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[path[-1]] = to
    return pod


def owner(**more):
    return [{"controller": True, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", **more}]


LONG = "x" * MIB
NAMES = [f"{n:06}" for n in range(9000)]
CONTAINERS = [{"name": name, "resources": {"limits": {MEM: "1"}}} for name in NAMES]
LARGE = {
    "an annotation of any key": changed("metadata", "annotations", to={"example.com/notes": LONG}),
    "every annotation that is read": changed("metadata", "annotations", to=dict.fromkeys(an.KEYS, LONG)),
    "the same with one character that takes four bytes": changed(
        "metadata", "annotations", to=dict.fromkeys(an.KEYS, "\U0001f600" + LONG)
    ),
    "many annotations": changed("metadata", "annotations", to=dict.fromkeys(NAMES, "x" * 20)),
    "many labels": changed("metadata", "labels", to=dict.fromkeys(NAMES, "x" * 60)),
    "field ownership": changed("metadata", "managedFields", to=[{"fieldsV1": LONG}]),
    "finalizers": changed("metadata", "finalizers", to=NAMES),
    "an owner": changed("metadata", "ownerReferences", to=owner(name=LONG, uid=LONG)),
    "many owners": changed("metadata", "ownerReferences", to=[{"name": name} for name in NAMES]),
    "environment": changed("spec", "containers", 0, "env", to=[{"name": name, "value": name} for name in NAMES]),
    "an image": changed("spec", "containers", 0, "image", to=LONG),
    "amounts of other resources": changed(
        "spec", "containers", 0, "resources", to={"limits": {MEM: "4", **{f"a.b/{name}": "1" for name in NAMES}}}
    ),
    "a message of its status": changed("status", "message", to=LONG),
    "conditions": changed("status", "conditions", to=[{"message": LONG}]),
    "kubelet's words on a rejected pod": changed("status", to={**REJECTED, "message": LONG}),
    "containers of a rejected pod": {**changed("spec", "containers", to=CONTAINERS), "status": REJECTED},
    "a pod that has ended": {**changed("spec", "containers", to=CONTAINERS), "status": {"phase": "Succeeded"}},
}


@pytest.mark.parametrize("what", LARGE)
def test_what_is_kept_of_a_pod_is_little(what):
    pod = read(LARGE[what])
    assert pod.name == PodName("ml", "a")
    assert size(pod) < 16 * 1024, what


def test_a_thousand_containers_are_kept_by_name_and_of_more_their_amounts():
    pod = read(changed("spec", "containers", to=CONTAINERS))
    assert size(pod) < 512 * 1024
    assert [one.name for one in pod.containers[:1000]] == NAMES[:1000]
    assert pod.containers[1000:] == (ContainerSpec("", {MEM: 1}),) * 8000


def test_another_resource_in_each_container_costs_no_more_than_the_same_one():
    other, same = (
        [{"resources": {"limits": {f"a.b/{name}": "1"}}} for name in names] for names in (NAMES, ["x"] * 9000)
    )
    assert size(read(changed("spec", "containers", to=other))) <= size(read(changed("spec", "containers", to=same)))


def test_a_decision_for_a_thousand_containers_is_read():
    text = an.shares_text(an.Shares({n: {n % 8: 1} for n in range(1000)}))
    assert an.bounded({an.MEMORY_ANNOTATION: text}) == {an.MEMORY_ANNOTATION: text}
    assert len(text) <= an.MOST_TEXT


@pytest.mark.parametrize("key", [an.MEMORY_ANNOTATION, an.CORE_ANNOTATION])
@given(hostile.anything, st.sampled_from([" ", "x", "0", ",", "}", "²"]), st.integers(0, 2))
@example('{"0":{"1":4}}', " ", 1)
def test_a_decision_that_is_cut_is_read_as_it_is_or_not_at_all(key, value, filler, halves):
    text = value + filler * (an.MOST_TEXT // 2 * halves) if isinstance(value, str) else value
    found = an.shares(an.bounded({key: text}), key)
    if isinstance(text, str) and len(text) > an.MOST_TEXT:
        assert isinstance(found, Malformed)
        assert "not read: it is too long" in str(found)
    elif isinstance(text, str):
        assert repr(found) == repr(an.shares({key: text}, key)) or isinstance(found, Malformed)


@pytest.mark.parametrize("key", [an.V1_GPU, an.V1_UNITS, an.V1_GPU_UNITS, an.V1_ASSUMED, an.V1_ASSIGNED])
def test_a_v1_annotation_that_is_cut_is_malformed(key):
    decided = an.assumed_texts(an.Assumed(1, 4, 80, 5, assigned=False))
    found = an.assumed(an.bounded({**decided, key: decided[key] + " " * 2000}))
    assert isinstance(found, Malformed)
    assert found.key == key
    assert "not read: it is too long" in str(found)


@pytest.mark.parametrize("key", [GROUP_ANNOTATION, VISIBLE_ANNOTATION])
def test_a_list_of_gpus_that_is_cut_is_malformed(key):
    assert an.gpu_names(an.bounded({key: "0,1," + ",".join(map(str, range(2, 100)))}), key) is not None
    found = an.gpu_names(an.bounded({key: "0,1," + " " * 2000}), key)
    assert isinstance(found, Malformed)
    assert "not read: it is too long" in str(found)


@pytest.mark.parametrize("field", ["kind", "uid"])
def test_an_owner_with_a_field_that_is_too_long_is_none_rather_than_another(field):
    assert read(changed("metadata", "ownerReferences", to=owner(**{field: LONG}))).controller is None


def test_what_the_core_reads_stays():
    labels = {GPU_COUNT_LABEL: "2", JOB_LABEL: "j", REPLICAS_LABEL: "3"}
    found = pod_json(
        "a", {MEM: 4, "other.io/a": 1, "other.io/b": 2}, {}, init=({MEM: 1},), labels={**labels, "app": "x"}
    )
    pod = read(found)
    assert pod.labels == labels
    assert pod.containers == (
        ContainerSpec("init-0", {MEM: 1}, init=True),
        ContainerSpec("main", {MEM: 4, "another/resource": 1}),
        ContainerSpec("main-1", {}),
    )


def test_a_decision_longer_than_what_is_read_is_not_written_again_and_again():
    """It could not be seen to be there."""
    names = ["main", *(f"main-{n}" for n in range(1, 1500))]
    held = [holding("a", unit_ids(0, Kind.MEMORY_SHARE, n), container=name) for n, name in enumerate(names)]
    pod = pod_json("a", *({MEM: 1} for _ in names), annotations={an.MEMORY_ANNOTATION: "x" * (an.MOST_TEXT + 1)})
    node = in_force(Mode.SHARE, box(1, 2000)).holdings(*held).pods(pod)
    assert not any(write.corrections or an.MEMORY_ANNOTATION in write.texts for write in writes(node.state))
