"""What is written on pods: the decision completed, corrected by kubelet's allocations, or made up for; nothing else, and once."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.certain_holdings import uncertain
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import Assumed, Shares
from gpuagent.domain.pods.pod import CheckpointEntry, Holding
from gpuagent.domain.reconcile.pod_annotations import PodWrite, writes
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, VISIBLE_ANNOTATION, Kind, Mode
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    owner,
    pod_json,
    unit_ids,
)

MS, MM, CM, GT = Kind.MEMORY_SHARE, Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM, Kind.WHOLE_TOPOLOGY
V2, V2_CORE = an.MEMORY_ANNOTATION, an.CORE_ANNOTATION
NOW = 1_800_000_000_000_000_000
BY_SCHEDULER = {an.V1_GPU: "1", an.V1_GPU_UNITS: "16", an.V1_UNITS: "4", an.V1_ASSIGNED: "false", an.V1_ASSUMED: "17"}
MINE = {an.DECIDED_ANNOTATION: "uid-a"}
"""What the agent writes with any other annotation of pod `a`."""


def share(pod: str, number: int, *units: int, container: str = "main") -> Holding:
    return holding(pod, unit_ids(number, MS, *units), container=container)


def node_with(*held: Holding, mode: Mode = Mode.SHARE, **policy: Any) -> NodeUnderTest:
    return in_force(mode, box(4), **policy).holdings(*held)


def only(node: NodeUnderTest) -> PodWrite:
    (write,) = writes(node.state)
    return write


def done(pod: dict[str, Any], write: PodWrite) -> dict[str, Any]:
    """The pod after the write."""
    after = deepcopy(pod)
    after["metadata"]["annotations"] |= write.body(NOW)["metadata"]["annotations"]
    return after


def settles(node: NodeUnderTest, pod: dict[str, Any]) -> dict[str, str]:
    """The annotations after the one write that the pod needs; after it none is needed."""
    write = only(node.pods(pod))
    after = done(pod, write)
    assert writes(node.pods(after).state) == ()
    return after["metadata"]["annotations"]


# -- V1 ----------------------------------------------------------------------------------------------------------


def test_a_pod_of_the_gpushare_extender_is_assigned_as_the_open_plugin_does_it():
    pod = pod_json("a", {MEM: 4}, annotations=BY_SCHEDULER)
    node = node_with(share("a", 1, 0, 1, 2, 3))
    write = only(node.pods(pod))
    assert write.body(NOW)["metadata"]["annotations"] == {
        **MINE,
        an.V1_ASSIGNED: "true",
        an.V1_ASSUMED: str(NOW),
    }
    assert write.corrections == ()
    assert settles(node, pod) == {**BY_SCHEDULER, **MINE, an.V1_ASSIGNED: "true", an.V1_ASSUMED: str(NOW)}


def test_an_assigned_pod_is_left_alone_with_the_time_of_its_assignment():
    pod = pod_json("a", {MEM: 4}, annotations={**BY_SCHEDULER, an.V1_ASSIGNED: "true"})
    assert writes(node_with(share("a", 1, 0, 1, 2, 3)).pods(pod).state) == ()


def test_the_gpu_that_the_extender_did_not_choose_is_corrected_and_reported():
    node = node_with(share("a", 2, 0, 1, 2, 3))
    write = only(node.pods(pod_json("a", {MEM: 4}, annotations=BY_SCHEDULER)))
    assert write.texts == {**MINE, an.V1_GPU: "2", an.V1_ASSIGNED: "true"}
    assert write.corrections == (
        (
            "annotation ALIYUN_COM_GPU_MEM_IDX says 1, with 4 units in ALIYUN_COM_GPU_MEM_POD; according to kubelet's allocations, the pod holds "
            "4 units of GPU 2, and the agent corrects the annotation"
        ),
    )


def test_a_forged_annotation_of_a_running_pod_is_corrected_and_keeps_its_time():
    forged = {**BY_SCHEDULER, an.V1_ASSIGNED: "true", an.V1_GPU: "3", an.V1_UNITS: "1000"}
    write = only(node_with(share("a", 1, 0, 1, 2, 3)).pods(pod_json("a", {MEM: 4}, annotations=forged)))
    assert write.texts == {**MINE, an.V1_GPU: "1", an.V1_UNITS: "4"}
    assert not write.stamped
    assert len(write.corrections) == 1


@pytest.mark.parametrize("spelling", ["4", "4e0", "4000m", "+4", "4.", "no amount"])
def test_the_spelling_of_an_amount_does_not_keep_an_annotation_from_being_corrected(spelling):
    """Where an amount cannot be read, kubelet's allocations say what the container has."""
    pod = pod_json("a", {MEM: spelling}, annotations={V2: '{"0":{"3":4}}'})
    assert only(node_with(share("a", 1, 0, 1, 2, 3)).pods(pod)).texts == {**MINE, V2: '{"0":{"1":4}}'}
    assert writes(node_with().pods(pod).state) == ()


@pytest.mark.parametrize("gone", an.V1_KEYS)
def test_a_key_that_somebody_removed_is_put_back_without_ado(gone):
    full = {**BY_SCHEDULER, an.V1_ASSIGNED: "true"}
    pod = pod_json("a", {MEM: 4}, annotations={key: text for key, text in full.items() if key != gone})
    node = node_with(share("a", 1, 0, 1, 2, 3))
    assert only(node.pods(pod)).corrections == ()
    assert settles(node, pod).keys() == full.keys() | MINE.keys()


@pytest.mark.parametrize(("key", "text"), [(an.V1_GPU, "x"), (an.V1_UNITS, "-4"), (an.V1_ASSIGNED, "True")])
def test_what_is_not_readable_is_written_anew(key, text):
    pod = pod_json("a", {MEM: 4}, annotations={**BY_SCHEDULER, key: text})
    node = node_with(share("a", 1, 0, 1, 2, 3))
    assert key in only(node.pods(pod)).corrections[0]
    assert settles(node, pod)[key] == {an.V1_GPU: "1", an.V1_UNITS: "4", an.V1_ASSIGNED: "true"}[key]


def test_one_index_names_one_gpu_of_several_and_the_other_family_all_of_them():
    pod = pod_json("a", {MEM: 4}, annotations=BY_SCHEDULER, labels={"aliyun.com/gpu-count": "2"})
    node = node_with(holding("a", unit_ids(1, MS, 0, 1) | unit_ids(3, MS, 0, 1)))
    assert "and of 1 more GPUs, which one index cannot say" in only(node.pods(pod)).corrections[0]
    after = settles(node, pod)
    assert (after[an.V1_GPU], after[an.V1_UNITS], after[V2]) == ("1", "2", '{"0":{"1":2,"3":2}}')


def test_sidecars_and_what_init_containers_leave_are_counted_in_the_pods_units():
    pod = pod_json("a", {MEM: 4}, init=({MEM: 6},), sidecar=({MEM: 1},), annotations=BY_SCHEDULER)
    held = (share("a", 1, 0, 1, 2, 3), share("a", 1, 9, container="side-0"))
    kept = (
        CheckpointEntry("uid-a", "init-0", MEM, unit_ids(1, MS, 0, 1, 2, 3, 4, 5)),
        CheckpointEntry("uid-a", "main", MEM, unit_ids(1, MS, 0, 1, 2, 3)),
        CheckpointEntry("uid-a", "side-0", MEM, unit_ids(1, MS, 9)),
    )
    node = node_with().pods(pod).send(ev.HoldingsRead(held, 0.0, 0.0, kept))
    after = settles(node, pod)
    assert (after[an.V1_UNITS], after[an.V1_ASSIGNED]) == ("4", "true")  # a scheduler's sum is as it counts
    silent = {**pod, "metadata": {**pod["metadata"], "annotations": {}}}
    assert settles(node, silent)[an.V1_UNITS] == "7"
    pod["metadata"]["annotations"][an.V1_UNITS] = "5"
    assert settles(node, pod)[an.V1_UNITS] == "7"


def test_a_uuid_in_the_place_of_a_number_is_that_gpu():
    held = share("a", 1, 0, 1, 2, 3)
    right = {**BY_SCHEDULER, an.V1_GPU: gpu(1).uuid, an.V1_ASSIGNED: "true", V2: f'{{"0":{{"{gpu(1).uuid}":4}}}}'}
    assert writes(node_with(held).pods(pod_json("a", {MEM: 4}, annotations=right)).state) == ()
    wrong = {**right, an.V1_GPU: gpu(2).uuid, V2: f'{{"0":{{"{gpu(2).uuid}":4}}}}'}
    after = settles(node_with(held), pod_json("a", {MEM: 4}, annotations=wrong))
    assert (after[an.V1_GPU], after[V2]) == ("1", '{"0":{"1":4}}')


# -- V2 ----------------------------------------------------------------------------------------------------------


def test_a_pod_of_acks_scheduler_that_got_what_was_decided_is_left_alone():
    pod = pod_json("a", {MEM: 2}, {MEM: 1}, annotations={V2: '{"1": {"0":1, "2":0}, "0": {"1":2}}'})
    node = node_with(share("a", 1, 0, 1), share("a", 0, 0, container="main-1"))
    assert writes(node.pods(pod).state) == ()


def test_what_kubelets_allocations_contradict_is_corrected():
    pod = pod_json("a", {MEM: 2}, {MEM: 1}, annotations={V2: '{"0":{"3":2},"1":{"0":1}}'})
    node = node_with(share("a", 1, 0, 1), share("a", 0, 0, container="main-1"))
    write = only(node.pods(pod))
    assert write.texts == {**MINE, V2: '{"0":{"1":2},"1":{"0":1}}'}
    assert not write.stamped
    assert write.corrections == (
        (
            f'annotation {V2} says {{"0":{{"3":2}},"1":{{"0":1}}}}; according to kubelet\'s allocations, the pod holds '
            '{"0":{"1":2},"1":{"0":1}}, and the agent corrects the annotation'
        ),
    )
    settles(node, pod)


def test_the_handshake_is_completed_on_a_pod_of_either_family():
    keys = {V2: '{"0":{"1":4}}', an.V1_ASSIGNED: "false", an.V1_ASSUMED: "17"}
    after = settles(node_with(share("a", 1, 0, 1, 2, 3)), pod_json("a", {MEM: 4}, annotations=keys))
    assert (after[an.V1_ASSIGNED], after[an.V1_ASSUMED]) == ("true", str(NOW))


def test_compute_is_reported_beside_memory():
    held = (holding("a", unit_ids(2, MM, 0, 1)), holding("a", unit_ids(2, CM, *range(30)), CORE))
    node = node_with(*held, mode=Mode.CORE_MEM)
    wrong = pod_json("a", {MEM: 2, CORE: 30}, annotations={V2: '{"0":{"2":2}}', V2_CORE: '{"0":{"1":30}}'})
    assert settles(node, wrong) == {**MINE, V2: '{"0":{"2":2}}', V2_CORE: '{"0":{"2":30}}'}
    silent = pod_json("a", {MEM: 2, CORE: 30}, annotations={V2: '{"0":{"2":2}}'})
    assert settles(node, silent)[V2_CORE] == '{"0":{"2":30}}'


def test_units_of_which_no_annotation_says_where_they_are_written_are_no_contradiction():
    pod = pod_json("a", {MEM: 2}, sidecar=({MEM: 1},), annotations={V2: '{"0":{"1":2},"1":{"1":1}}'})
    node = node_with(share("a", 1, 0, 1), share("a", 1, 9, container="side-0"))
    assert writes(node.pods(pod).state) == ()


# -- pods that no scheduler annotated ---------------------------------------------------------------------------------


def test_a_pod_without_annotations_is_reported_in_both_families():
    after = settles(node_with(share("a", 2, 0, 1, 2)), pod_json("a", {MEM: 3}))
    assert after == {
        **MINE,
        an.V1_GPU: "2",
        an.V1_UNITS: "3",
        an.V1_GPU_UNITS: "16",
        an.V1_ASSIGNED: "true",
        an.V1_ASSUMED: str(NOW),
        V2: '{"0":{"2":3}}',
    }


def test_a_pod_on_several_gpus_is_reported_in_the_family_that_can():
    held = holding("a", unit_ids(0, MS, 0) | unit_ids(1, MS, 0))
    assert settles(node_with(held), pod_json("a", {MEM: 2})) == {**MINE, V2: '{"0":{"0":1,"1":1}}'}


def test_a_pod_with_units_that_positions_cannot_say_is_reported_in_the_family_that_can():
    node = node_with(share("a", 1, 0, 1), share("a", 1, 9, container="side-0"))
    after = settles(node, pod_json("a", {MEM: 2}, sidecar=({MEM: 1},)))
    assert V2 not in after
    assert after[an.V1_UNITS] == "3"


def test_a_pod_whose_sidecar_is_on_another_gpu_is_reported_by_its_other_containers():
    node = node_with(share("a", 1, 0, 1), share("a", 2, 9, container="side-0"))
    after = settles(node, pod_json("a", {MEM: 2}, sidecar=({MEM: 1},)))
    assert after == {**MINE, V2: '{"0":{"1":2}}'}


def test_the_compute_of_a_pod_with_a_sidecar_is_reported_by_its_other_containers():
    held = [holding("a", unit_ids(1, MM, n), container=name) for n, name in enumerate(("main", "side-0"))]
    cores = [holding("a", unit_ids(1, CM, n), CORE, name) for n, name in enumerate(("main", "side-0"))]
    pod = pod_json("a", {MEM: 1, CORE: 1}, sidecar=({MEM: 1, CORE: 1},))
    after = settles(node_with(*held, *cores, mode=Mode.CORE_MEM), pod)
    assert (after[an.V1_UNITS], after[V2_CORE], V2 in after) == ("2", '{"0":{"1":1}}', False)


def test_a_pod_that_is_not_annotated_has_a_reason():
    node = node_with(share("a", 1, 0, 1), share("b", 2, 9, 8)).pods(pod_json("a", {MEM: 3}), pod_json("b", {MEM: 2}))
    found = [(pod.name.name, why) for pod, why in uncertain(node.state, node.state.pods.seen)]
    assert found == [("a", "kubelet's allocations do not have what its containers request")]


def test_whole_gpus_are_reported():
    held = holding("a", unit_ids(3, GT, 0) | unit_ids(0, GT, 0), WHOLE)
    assert settles(node_with(held, mode=Mode.TOPOLOGY), pod_json("a", {WHOLE: 2})) == {**MINE, GROUP_ANNOTATION: "0,3"}


def test_without_the_setting_only_what_schedulers_wrote_is_kept():
    node = node_with(share("a", 2, 0, 1, 2), share("b", 1, 0, 1, 2, 3), annotate_pods=False)
    node.pods(pod_json("a", {MEM: 3}), pod_json("b", {MEM: 4}, annotations=BY_SCHEDULER))
    assert only(node).pod.name == "b"
    whole = node_with(holding("a", unit_ids(3, GT, 0), WHOLE), mode=Mode.TOPOLOGY, annotate_pods=False)
    assert writes(whole.pods(pod_json("a", {WHOLE: 1})).state) == ()


def test_gpus_are_named_by_their_minor_numbers():
    node = in_force(Mode.SHARE, (gpu(0, minor=7), gpu(1, minor=4))).holdings(share("a", 0, 0))
    assert settles(node, pod_json("a", {MEM: 1}))[an.V1_GPU] == "7"


# -- topology ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["1,3", "3,1", f"{gpu(1).uuid},3"])
def test_a_group_that_was_kept_is_left_alone(named):
    held = holding("a", unit_ids(3, GT, 0) | unit_ids(1, GT, 0), WHOLE)
    pod = pod_json("a", {WHOLE: 2}, annotations={GROUP_ANNOTATION: named, VISIBLE_ANNOTATION: "0,1,2,3"})
    assert writes(node_with(held, mode=Mode.TOPOLOGY).pods(pod).state) == ()


@pytest.mark.parametrize("named", ["0,2", "0,1,2", "1", "9,1", "1,1", "", "x"])
def test_a_group_that_was_not_kept_is_reported(named):
    held = holding("a", unit_ids(3, GT, 0) | unit_ids(1, GT, 0), WHOLE)
    pod = pod_json("a", {WHOLE: 2}, annotations={GROUP_ANNOTATION: named})
    node = node_with(held, mode=Mode.TOPOLOGY)
    assert bool(only(node.pods(pod)).corrections) == bool(named)
    assert settles(node, pod) == {**MINE, GROUP_ANNOTATION: "1,3"}


def test_a_pod_sees_the_gpus_it_has():
    held = holding("a", unit_ids(3, GT, 0) | unit_ids(1, GT, 0), WHOLE)
    pod = pod_json("a", {WHOLE: 2}, annotations={GROUP_ANNOTATION: "0,1", VISIBLE_ANNOTATION: "0,1"})
    assert settles(node_with(held, mode=Mode.TOPOLOGY), pod) == {
        **MINE,
        GROUP_ANNOTATION: "1,3",
        VISIBLE_ANNOTATION: "0,1,3",
    }


def test_whole_gpus_of_mode_default_are_nobodys_business():
    node = in_force(Mode.DEFAULT, box(4)).holdings(holding("a", unit_ids(3, Kind.WHOLE_DEFAULT, 0), "nvidia.com/gpu"))
    assert writes(node.pods(pod_json("a", {"nvidia.com/gpu": 1})).state) == ()


# -- copies ---------------------------------------------------------------------------------------------------------------

COPIED = {an.DECIDED_ANNOTATION: "uid-of-the-first"}


def test_a_copy_that_names_other_gpus_is_corrected_and_is_then_of_this_pod():
    copied = pod_json("a", {MEM: 4}, annotations={V2: '{"0":{"3":4}}', **COPIED})
    node = node_with(share("a", 1, 0, 1, 2, 3))
    assert len(only(node.pods(copied)).corrections) == 1
    assert settles(node, copied) == {V2: '{"0":{"1":4}}', **MINE}


@pytest.mark.parametrize(
    ("held", "asks", "annotations"),
    [
        (share("a", 1, 0, 1, 2, 3), {MEM: 4}, {V2: '{"0":{"1":4}}'}),
        (share("a", 1, 0, 1, 2, 3), {MEM: 4}, {**BY_SCHEDULER, an.V1_ASSIGNED: "true"}),
        (holding("a", unit_ids(1, GT, 0), WHOLE), {WHOLE: 1}, {GROUP_ANNOTATION: "1"}),
    ],
    ids=["V2", "V1", "gpu-group"],
)
def test_a_copy_that_names_the_gpus_the_pod_has_gets_its_uid_without_ado(held, asks, annotations):
    node = node_with(held, mode=Mode.TOPOLOGY if WHOLE in asks else Mode.SHARE)
    copied = pod_json("a", asks, annotations=annotations | COPIED)
    write = only(node.pods(copied))
    assert (write.texts, write.corrections) == (MINE, ())
    assert settles(node, copied) == annotations | MINE
    assert writes(node.pods(pod_json("a", asks, annotations=annotations)).state) == ()


# -- for which pods kubelet's allocations are certain ------------------------------------------------------------


def deleted(pod: dict[str, Any]) -> dict[str, Any]:
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pod


def test_a_pod_in_the_middle_of_its_admission_waits():
    pod = pod_json("a", {MEM: 2}, {MEM: 1})
    assert writes(node_with(share("a", 1, 0, 1)).pods(pod).state) == ()
    assert writes(node_with(share("a", 1, 0), share("a", 0, 0, container="main-1")).pods(pod).state) == ()


def test_a_pod_that_has_ended_or_is_not_there_is_not_written():
    node = node_with(share("a", 1, 0, 1), share("b", 2, 0))
    assert writes(node.pods(pod_json("a", {MEM: 2}, phase="Succeeded")).state) == ()
    assert writes(node.pods(deleted(pod_json("a", {MEM: 2}))).state) == ()
    assert writes(node.pods().state) == ()


def test_a_pod_on_its_way_out_is_corrected_only():
    """Until it has gone others are counted by what it says; nobody takes it over any more."""
    node = node_with(share("a", 1, 0, 1))
    right = an.assumed_texts(an.Assumed(1, 2, 24, assigned=False))
    assert writes(node.pods(deleted(pod_json("a", {MEM: 2}, annotations=right))).state) == ()
    wrong = an.assumed_texts(an.Assumed(0, 2, 24, assigned=True))
    assert only(node.pods(deleted(pod_json("a", {MEM: 2}, annotations=wrong)))).texts[an.V1_GPU] == "1"


def test_a_pod_made_again_under_the_name_is_not_the_one_in_the_allocations():
    old = CheckpointEntry("uid-of-the-one-before", "main", MEM, unit_ids(1, MS, 0, 1))
    new = CheckpointEntry("uid-a", "main", MEM, unit_ids(2, MS, 0, 1))
    node = node_with().pods(pod_json("a", {MEM: 2}))
    assert writes(node.send(ev.HoldingsRead((share("a", 1, 0, 1),), 0.0, 0.0, (old,))).state) == ()
    assert only(node.send(ev.HoldingsRead((share("a", 2, 0, 1),), 0.0, 0.0, (new,)))).texts[an.V1_GPU] == "2"


@pytest.mark.parametrize("foreign", ["GPU-of-the-old-plugin-_-7", "zzzzzzzzzz-ms-0"])
def test_units_of_another_plugin_or_of_a_gpu_that_is_not_known_are_not_reported(foreign):
    node = node_with(holding("a", unit_ids(1, MS, 0) | {foreign}))
    assert writes(node.pods(pod_json("a", {MEM: 2})).state) == ()


def test_a_number_that_two_gpus_had_is_not_reported():
    node = in_force(Mode.SHARE, (gpu(0), gpu(1))).inventory(gpu(0), gpu(2, minor=1))
    node.holdings(share("a", 1, 0), share("b", 2, 0), share("c", 0, 0))
    node.pods(*(pod_json(name, {MEM: 1}) for name in "abc"))
    assert only(node).pod.name == "c"


def test_a_pod_of_a_former_mode_is_reported_nevertheless():
    node = node_with(share("a", 1, 0)).label("topology")
    assert node.state.node.mode is Mode.TOPOLOGY
    assert only(node.pods(pod_json("a", {MEM: 1}))).texts[an.V1_GPU] == "1"


def versioned(name: str, version: int, **more: Any) -> dict[str, Any]:
    pod = pod_json(name, {MEM: 1}, **more)
    pod["metadata"]["resourceVersion"] = str(version)
    return pod


def test_what_a_pod_needs_is_not_worked_out_again_while_it_and_the_allocations_are_as_they_were():
    node = node_with(share("a", 1, 0), share("b", 2, 0)).pods(versioned("a", 1), versioned("b", 1))
    before, first = node.state, writes(node.state)
    after = node.pods(versioned("a", 1), versioned("b", 2)).state
    again = {write.pod.name: write for write in writes(after, before, first)}
    assert again["a"] is first[0]
    assert again["b"].version == "2"
    assert sorted(again) == ["a", "b"]


@pytest.mark.parametrize(
    "then",
    [
        lambda node: node.pods(versioned("a", 1)),
        lambda node: node.pods(versioned("a", 1), versioned("b", 2, phase="Succeeded")),
        lambda node: node.pods(versioned("a", 1), versioned("b", 2, annotations={V2: '{"0":{"2":1}}'})),
        lambda node: node.holdings(share("a", 3, 0), share("b", 2, 0)),
        lambda node: node.inventory(*box(3)),
        lambda node: node,
    ],
)
def test_what_is_kept_of_former_writes_is_what_would_come_out_anew(then):
    node = node_with(share("a", 1, 0), share("b", 2, 0)).pods(versioned("a", 1), versioned("b", 1))
    before, first = node.state, writes(node.state)
    after = then(node).state
    assert set(map(repr, writes(after, before, first))) == set(map(repr, writes(after)))


# -- what people hear -----------------------------------------------------------------------------------------------------


def test_a_correction_is_reported_when_the_server_has_taken_it():
    forged = pod_json("a", {MEM: 4}, annotations={**BY_SCHEDULER, an.V1_GPU: "3"})
    node = node_with(share("a", 1, 0, 1, 2, 3))
    node.announced()
    write = only(node.pods(forged))
    assert node.announced() == []
    node.send(ev.AnnotationsCorrected(write.pod, write.corrections, node.now))
    (announcement,) = node.announcements
    assert (announcement.reason, announcement.warning, announcement.pods) == (
        "AnnotationCorrected",
        True,
        (owner("a").pod,),
    )
    assert announcement.message == write.corrections[0]


def test_what_is_repeated_of_anothers_text_is_short():
    forged = {GROUP_ANNOTATION: "1," * 50_000 + "1", VISIBLE_ANNOTATION: ",".join(map(str, range(50_000)))}
    node = node_with(holding("a", unit_ids(3, GT, 0), WHOLE), mode=Mode.TOPOLOGY)
    (write,) = writes(node.pods(pod_json("a", {WHOLE: 1}, annotations=forged)).state)
    assert all(len(text) < 500 for text in write.corrections)


def test_a_write_names_the_pod_and_the_version_it_follows_from():
    pod = pod_json("a", {MEM: 1})
    pod["metadata"]["resourceVersion"] = "12"
    metadata = only(node_with(share("a", 1, 0)).pods(pod)).body(NOW)["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("uid-a", "12")


# -- properties -----------------------------------------------------------------------------------------------------------

small = st.integers(0, 5)
texts = st.one_of(
    st.text(max_size=8),
    st.integers(-2, 20).map(str),
    st.sampled_from(["true", "false", "", "-1", gpu(0).uuid]),
    st.lists(small, max_size=3).map(lambda numbers: ",".join(map(str, numbers))),
    st.builds(Shares, st.dictionaries(small, st.dictionaries(small, small, max_size=2), max_size=3)).map(
        an.shares_text
    ),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2).map(json.dumps),
)
annotations = st.dictionaries(st.sampled_from([*an.KEYS, "somebody.else/s"]), texts)
amounts = st.dictionaries(st.integers(0, 3), st.integers(1, 3), min_size=1, max_size=3)


@given(
    annotations,
    st.lists(amounts, min_size=1, max_size=3),
    st.none() | amounts,
    st.sampled_from([MEM, WHOLE, CORE]),
    st.booleans(),
    st.booleans(),
)
def test_one_write_makes_any_pod_right_and_touches_nothing_else(
    found, containers, sidecar, resource, annotate, core_mem
):
    """Whatever is written on it, after one write the pod needs none, and what is written is what is held."""
    kind = {MEM: MM if core_mem else MS, WHOLE: GT, CORE: CM}[resource]
    used = [0] * 4

    def ids(of: dict[int, int]) -> frozenset[str]:
        out: frozenset[str] = frozenset()
        for number, units in of.items():
            first, used[number] = used[number], used[number] + units
            out |= unit_ids(number, kind, *range(first, first + units))
        return out

    names = ["main", *(f"main-{n}" for n in range(1, len(containers)))]
    held = [holding("a", ids(of), resource, name) for name, of in zip(names, containers, strict=True)]
    if sidecar:
        held.append(holding("a", ids(sidecar), resource, "side-0"))
    limits = [{resource: sum(of.values())} for of in containers]
    side = ({resource: sum(sidecar.values())},) if sidecar else ()
    pod = pod_json("a", *limits, sidecar=side, annotations=found)
    node = node_with(*held, annotate_pods=annotate).pods(pod)
    made = writes(node.state)
    assert len(made) <= 1
    for write in made:
        assert set(write.texts) <= set(an.WRITTEN_KEYS)
        after = done(pod, write)
        now = after["metadata"]["annotations"]
        assert {key: text for key, text in now.items() if key not in an.WRITTEN_KEYS} == {
            key: text for key, text in found.items() if key not in an.WRITTEN_KEYS
        }
        assert writes(node.pods(after).state) == ()
        total = {n: sum(of.get(n, 0) for of in [*containers, sidecar or {}]) for n in range(4)}
        total = {n: units for n, units in total.items() if units}
        if resource == MEM and isinstance(v1 := an.assumed(now), Assumed) and an.V1_GPU in write.texts:
            assert (v1.units, v1.assigned) == (total[v1.gpu], True)
        if V2 in write.texts and resource == MEM:
            assert an.shares(now, V2) == Shares(dict(enumerate(containers)))
        if resource == WHOLE and GROUP_ANNOTATION in write.texts:
            assert now[GROUP_ANNOTATION] == ",".join(map(str, sorted(total)))
