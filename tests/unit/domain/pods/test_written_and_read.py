"""What the agent writes on a pod it takes for a decision later: for the same GPUs, after a restart or a reboot."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import CheckpointEntry, Pod, asked
from gpuagent.domain.reconcile.pod_annotations import writes
from gpuagent.domain.scheduling.decision import Decision, Ignored, read
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.domain.builders import MEM, box, holding, in_force, pod_json, unit_ids
from tests.unit.domain.scheduling.test_decision import BORN_NS, MINORS, SHARE, v1, v2

NOW_NS = BORN_NS + 10**12
AMOUNTS = {MEM: dict.fromkeys(MINORS, 64)}


def admitted(pod: Pod, gpu_of: dict[str, int]):
    """A node whose kubelet has admitted the pod, each container on its GPU; units of init containers are handed on."""
    node, fresh = in_force(Mode.SHARE, box(4, 64)), defaultdict(int)
    idle: dict[int, list[int]] = defaultdict(list)
    held, recorded = [], []
    for container in pod.containers:
        gpu, wants = gpu_of[container.name], container.limits.get(MEM, 0)
        numbers, idle[gpu] = idle[gpu][:wants], idle[gpu][wants:]
        more = wants - len(numbers)
        numbers += range(fresh[gpu], fresh[gpu] + more)
        fresh[gpu] += more
        if container.init:
            idle[gpu] += numbers
        ids = unit_ids(gpu, Kind.MEMORY_SHARE, *numbers)
        recorded += [CheckpointEntry(pod.uid, container.name, MEM, ids)] if ids else []
        held += [holding(pod.name.name, ids, container=container.name)] if ids and not container.init else []
    return node.send(ev.HoldingsRead(tuple(held), 0.0, 0.0, tuple(recorded)))


sizes = st.integers(0, 6)
several = st.lists(sizes, max_size=2).map(tuple)


@given(st.lists(sizes, min_size=1, max_size=3), several, several, st.booleans(), st.data())
def test_what_is_written_on_a_pod_is_a_decision_for_the_gpus_that_it_has(apps, first, always, one_gpu, data):
    bare = pod_json(
        "a", *({MEM: n} for n in apps), init=tuple({MEM: n} for n in first), sidecar=tuple({MEM: n} for n in always)
    )
    pod = parse_pod(bare)
    gpus = [data.draw(st.integers(0, 3)) for _ in apps] if not one_gpu and not any(first + always) else [1] * len(apps)
    gpu_of = {c.name: gpu for c, gpu in zip(pod.app_containers, gpus, strict=True)}
    gpu_of |= {c.name: data.draw(st.integers(0, 3)) if c.sidecar else 1 for c in pod.containers if c.name not in gpu_of}
    annotations = data.draw(
        st.sampled_from([{}, v2({str(n): {str(gpus[n]): size} for n, size in enumerate(apps) if size})])
        | st.builds(v1, st.integers(0, 3), st.sampled_from([sum(apps), sum(apps) + sum(always), asked(pod, MEM), 99]))
    )
    node = admitted(pod, gpu_of).pods({**bare, "metadata": {**bare["metadata"], "annotations": annotations}})
    after = annotations
    for write in writes(node.state):
        after = {**annotations, **write.body(NOW_NS)["metadata"]["annotations"]}
    found = read(parse_pod({**bare, "metadata": {**bare["metadata"], "annotations": after}}), SHARE, MINORS, AMOUNTS)
    assert not isinstance(found, Ignored), found
    if not after.keys() & {an.V1_GPU, an.MEMORY_ANNOTATION} or not any(apps):
        return
    assert isinstance(found, Decision)
    assert {name: {MINORS[uuid] for uuid in of} for (name, _), of in found.units.items()} == {
        c.name: {gpu_of[c.name]} for c in pod.app_containers if c.limits.get(MEM)
    }


def test_what_one_init_container_hands_on_to_the_next_is_counted_once():
    pod = pod_json("a", {MEM: 1}, init=({MEM: 3}, {MEM: 2}))
    node = admitted(parse_pod(pod), {"init-0": 1, "init-1": 1, "main": 1}).pods(pod)
    assert [write.texts[an.V1_UNITS] for write in writes(node.state)] == ["3"]


@pytest.mark.parametrize("units", [4, 6, 7])
def test_a_schedulers_sum_is_that_of_the_containers_or_the_pods_request(units):
    pod = parse_pod(pod_json("a", {MEM: 4}, sidecar=({MEM: 2},), init=({MEM: 7},), annotations=v1(1, units)))
    assert isinstance(read(pod, SHARE, MINORS, AMOUNTS), Decision)


def test_a_sum_that_a_pod_with_a_sidecar_cannot_have_is_no_decision():
    for units in (3, 7):
        found = read(
            parse_pod(pod_json("a", {MEM: 4}, sidecar=({MEM: 2},), annotations=v1(1, units))), SHARE, MINORS, AMOUNTS
        )
        assert isinstance(found, Ignored)
        assert f"says {units}, and the pod's containers ask for 4, with its sidecars and init containers 6" in found.why
