"""Schedulers' decisions about shares at the allocator: every pod gets the GPU that was chosen for it, or hears why not."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuagent.allocator.allocator import Allocator
from gpuagent.allocator.preferred_allocation import REST_S
from gpuagent.domain import events as ev
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import CORE_ANNOTATION, DECIDED_ANNOTATION, MEMORY_ANNOTATION, MIRROR_ANNOTATION
from gpuagent.domain.pods.pod import CheckpointEntry, PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, JOB_LABEL, REPLICAS_LABEL, Kind, Mode
from tests.unit.allocator.desk import FakeAllocations, Isolation, NodeWithKubelet
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    box,
    gpu,
    holding,
    in_force,
    key,
    owner,
    pod_json,
    unit_ids,
    uuid,
)
from tests.unit.domain.scheduling.test_decision import v1, v2

pytestmark = pytest.mark.usefixtures("impatient")


def desk_of(*pods, mode=Mode.SHARE, gpus=4, tells_pods=True, **policy) -> NodeWithKubelet:
    desk = NodeWithKubelet(in_force(mode, gpus if isinstance(gpus, tuple) else box(gpus), **policy)).pods(*pods)
    desk.book.tells_pods = tells_pods
    return desk


def decided(name, index, size=4, second=0, **more):
    return pod_json(name, {MEM: size}, annotations=v1(index, size), created=f"2026-01-01T00:00:{second:02}Z", **more)


def serve(desk, name, size=4, container="main", resource=MEM):
    """Kubelet, which knows of no pod after this one, asks for it."""
    desk.book.asking = name
    return desk.serve(owner(name, container), resource, size)


def at(desk, name, container="main", resource=MEM) -> list[int]:
    return sorted(desk.snap.gpus[u].minor for u in desk.on(owner(name, container), resource))


@pytest.mark.parametrize("annotations", [v1(2, 4), v2({"0": {"2": 4}}), v2({"0": {uuid(2): 4}})])
def test_a_share_gets_the_gpu_that_a_scheduler_chose(annotations):
    desk = desk_of(pod_json("a", {MEM: 4}, annotations=annotations))
    assert serve(desk, "a").env["ALIYUN_COM_GPU_MEM_IDX"] == "2"
    assert at(desk, "a") == [2]


def test_the_index_is_the_minor_number():
    gpus = tuple(gpu(n, minor=3 - n) for n in range(4))
    desk = desk_of(decided("a", 0), gpus=gpus)
    assert [g.index for g in serve(desk, "a").gpus] == [3]
    assert at(desk, "a") == [0]


def test_every_container_gets_its_own_gpu():
    pod = pod_json("a", {MEM: 4}, {MEM: 4}, {MEM: 2}, annotations=v2({"0": {"3": 4}, "1": {"1": 4}, "2": {"3": 2}}))
    desk = desk_of(pod)
    for container, size in (("main", 4), ("main-1", 4), ("main-2", 2)):
        serve(desk, "a", size, container)
    assert [at(desk, "a", c) for c in ("main", "main-1", "main-2")] == [[3], [1], [3]]


def test_a_share_is_spread_over_the_gpus_that_were_chosen():
    pod = pod_json("a", {MEM: 4}, annotations=v2({"0": {"1": 2, "3": 2}}), labels={GPU_COUNT_LABEL: "2"})
    desk = desk_of(pod)
    assert serve(desk, "a").units == 2
    assert at(desk, "a") == [1, 3]


@pytest.mark.parametrize("first", [MEM, CORE])
def test_memory_and_compute_go_to_the_chosen_gpu_in_any_order(first):
    both = {MEM: 4, CORE: 30}
    pod = pod_json("a", both, annotations=v2({"0": {"2": 4}}) | v2({"0": {"2": 30}}, CORE_ANNOTATION))
    desk = desk_of(pod, mode=Mode.CORE_MEM)
    for resource in (first, MEM if first == CORE else CORE):
        serve(desk, "a", both[resource], resource=resource)
    assert at(desk, "a") == at(desk, "a", resource=CORE) == [2]


def test_an_init_container_is_where_the_container_after_it_will_be():
    pod = pod_json("a", {MEM: 4}, annotations=v1(2, 4), init=({MEM: 6},))
    desk = desk_of(pod)
    serve(desk, "a", 6, "init-0")
    assert at(desk, "a", "init-0") == [2]


def test_a_sidecar_is_beside_its_pod_where_it_fits():
    pod = pod_json("a", {MEM: 4}, annotations=v1(2, 4), sidecar=({MEM: 6},))
    desk = desk_of(pod)
    serve(desk, "a", 6, "side-0")
    serve(desk, "a", 4)
    assert at(desk, "a", "side-0") == at(desk, "a") == [2]


def test_a_sidecar_takes_nothing_that_was_chosen_for_its_pod():
    pod = pod_json("a", {MEM: 12}, annotations=v1(2, 12), sidecar=({MEM: 6},))
    desk = desk_of(pod)
    serve(desk, "a", 6, "side-0")
    serve(desk, "a", 12)
    assert at(desk, "a", "side-0") != at(desk, "a") == [2]


# -- what cannot be kept -------------------------------------------------------------------------------------------


def full(desk: NodeWithKubelet) -> NodeWithKubelet:
    """GPU 0 has 2 units left: somebody without a decision has the others."""
    desk.pods(*[pod_json("big", {MEM: 14})])
    serve(desk, "big", 14)
    assert at(desk, "big") == [0]
    return desk


def test_a_chosen_gpu_that_is_full_is_refused_with_the_reason():
    desk = full(desk_of())
    desk.pods(pod_json("big", {MEM: 14}), decided("a", 0))
    refusal = desk.refusal(lambda: serve(desk, "a"))
    assert refusal.reason is Reason.GPU_DECISION
    assert refusal.message == (
        "aliyun.com/gpu-mem: ml/a[main] asks for 4 GiB; a scheduler chose GPU 0 for it (annotation "
        "ALIYUN_COM_GPU_MEM_IDX), and GPU 0 has 2 free and not 4 (free: GPU 0: 2, GPU 1: 16, GPU 2: 16, GPU 3: 16)"
    )
    assert (PodName("ml", "a"), "GPURefused", refusal.message) in desk.said


def test_a_setting_has_another_gpu_chosen_where_the_chosen_one_is_full():
    desk = full(desk_of(keep_decisions=False))
    desk.pods(pod_json("big", {MEM: 14}), decided("a", 0))
    serve(desk, "a")
    assert at(desk, "a") == [1]
    assert desk.said[-1] == (
        PodName("ml", "a"),
        "GPUDecisionNotKept",
        (
            "aliyun.com/gpu-mem: ml/a[main] gets GPU 1: a scheduler chose GPU 0 for it (annotation "
            "ALIYUN_COM_GPU_MEM_IDX), which is full or gone, and --decided-gpu-full is choose"
        ),
    )


def test_the_setting_changes_nothing_where_the_chosen_gpu_has_room():
    desk = desk_of(decided("a", 3), keep_decisions=False)
    serve(desk, "a")
    assert at(desk, "a") == [3]
    assert not desk.said


def test_a_chosen_gpu_that_is_unhealthy_is_refused():
    from gpuagent.domain import events as ev

    desk = desk_of(decided("a", 1))
    offered = desk.free(MEM)
    desk.node.tell(ev.XidRaised(uuid(1), 79, desk.node.now))
    desk.publish()
    refusal = desk.refusal(lambda: desk.allocator.prefer(MEM, offered, (), 4))
    assert refusal.reason is Reason.GPU_DECISION
    assert "GPU 1 is unhealthy or leaves this mode" in refusal.message


def test_a_chosen_gpu_that_is_gone_is_refused_or_replaced():
    desk = desk_of(decided("a", 7))
    refusal = desk.refusal(lambda: serve(desk, "a"))
    assert refusal.reason is Reason.GPU_DECISION
    assert "annotation ALIYUN_COM_GPU_MEM_IDX names GPU 7, and this node has no such GPU" in refusal.message
    desk = desk_of(decided("a", 7), keep_decisions=False)
    assert serve(desk, "a")
    assert "names GPU 7, and this node has no such GPU, and --decided-gpu-full is choose" in desk.said[-1][2]


def test_a_gpu_that_has_as_many_pods_as_allowed_is_refused():
    desk = desk_of(decided("a", 0, 1), max_pods_per_gpu=1)
    serve(desk, "a", 1)
    desk.pods(decided("a", 0, 1), decided("b", 0, 1))
    assert "GPU 0 has 1 pods already, the most allowed" in desk.refusal(lambda: serve(desk, "b", 1)).message


def test_a_gpu_that_kubelet_does_not_offer_is_refused():
    desk = desk_of(decided("a", 0))
    aligned = [i for i in desk.free(MEM) if i.startswith((key(2), key(3)))]
    assert "kubelet offers nothing of GPU 0" in desk.refusal(lambda: desk.allocator.prefer(MEM, aligned, (), 4)).message


def test_what_is_no_decision_is_left_out_of_account_and_said():
    desk = desk_of(pod_json("a", {MEM: 4}, annotations=v1(2, 9)))
    serve(desk, "a")
    assert at(desk, "a") == [0]
    ((pod, reason, text),) = desk.said
    assert (pod, reason) == (PodName("ml", "a"), "GPUDecisionIgnored")
    assert "ALIYUN_COM_GPU_MEM_POD says 9, and the pod's containers ask for 4" in text


def test_nobody_gets_more_than_the_limit_or_anothers_units_by_what_is_written():
    forged = pod_json("thief", {MEM: 4}, annotations=v2({"0": {"0": 16}}))
    desk = desk_of(forged, decided("a", 0, 16))
    assert serve(desk, "thief").units == 4
    assert at(desk, "thief") == [1], "GPU 0 is reserved for another pod"
    serve(desk, "a", 16)


# -- kubelets that ask no preference, or do not follow --------------------------------------------------------------


def test_a_kubelet_that_picks_another_gpu_is_refused():
    desk = desk_of(decided("a", 2))
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, [f"{key(1)}-ms-{n}" for n in range(4)]))
    assert refusal.reason is Reason.GPU_DECISION
    assert "kubelet picked GPU 1 for ml/a[main], and a scheduler chose GPU 2 for it" in refusal.message
    assert desk.allocator.allocate(MEM, [f"{key(2)}-ms-{n}" for n in range(4)])


def test_a_decision_for_one_pod_is_nothing_to_an_equal_pod_without():
    desk = desk_of(decided("a", 2), pod_json("b", {MEM: 4}, created="2026-01-01T00:00:09Z"), tells_pods=False)
    assert desk.allocator.allocate(MEM, [f"{key(1)}-ms-{n}" for n in range(4)])


# -- several pods in flight ------------------------------------------------------------------------------------------


def test_a_pod_that_kubelet_gave_up_after_its_memory_is_not_taken_for_the_next_one():
    both = {MEM: 4, CORE: 30}
    first = pod_json("a", both, annotations=v2({"0": {"1": 4}}))
    desk = desk_of(first, pod_json("b", both, annotations=v2({"0": {"2": 4}})), mode=Mode.CORE_MEM)
    serve(desk, "a")
    desk.end("a")  # its admission failed for another reason; our watch does not show it yet
    desk.book.asking = "b"
    serve(desk, "b", 30, resource=CORE)
    serve(desk, "b")
    assert at(desk, "b") == at(desk, "b", resource=CORE) == [2]


@pytest.mark.parametrize("seed", range(4))
def test_each_of_many_equal_pods_gets_its_own_gpu_where_kubelet_can_be_asked(seed):
    pods = [decided(f"p{n}", n % 4, second=n) for n in range(10)]
    desk = desk_of(*pods)
    order = random.Random(seed).sample(range(10), 10)
    for n in order:
        serve(desk, f"p{n}")
    assert {n: at(desk, f"p{n}") for n in order} == {n: [n % 4] for n in order}


def test_a_pod_that_kubelet_has_just_rejected_is_not_taken_for_the_asker():
    """It lingers in kubelet's list, with nothing held; our watch does not show yet that it has failed."""
    both = pod_json("both", {MEM: 4}, {MEM: 4}, annotations=v2({"0": {"2": 4}, "1": {"3": 4}}))
    desk = desk_of(decided("rejected", 0), decided("next", 1, second=1), both)
    desk.book.rejected = {"rejected"}
    serve(desk, "next")
    assert at(desk, "next") == [1]
    serve(desk, "both")
    serve(desk, "both", container="main-1")
    assert (at(desk, "both"), at(desk, "both", "main-1")) == ([2], [3])


def test_where_kubelet_does_not_answer_pods_that_differ_are_refused_with_the_cause():
    """To guess would put one of them on a GPU that was chosen for the other."""
    desk = desk_of(decided("a", 0), decided("b", 1, second=1), tells_pods=False)
    refusal = desk.refusal(lambda: serve(desk, "b"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "a scheduler chose GPUs for ml/a, ml/b" in refusal.message
    assert "kubelet's pod-resources API did not answer" in refusal.message
    desk.book.tells_pods = True
    serve(desk, "b")
    assert at(desk, "b") == [1]


def test_where_kubelet_does_not_answer_pods_that_are_alike_are_served():
    desk = desk_of(decided("a", 2), decided("b", 2, second=1), decided("c", 0, 12, second=2), tells_pods=False)
    for name in ("b", "a"):
        serve(desk, name)
        assert at(desk, name) == [2]


def test_where_kubelet_does_not_answer_a_pod_without_a_decision_gets_what_is_not_reserved():
    desk = desk_of(pod_json("b", {MEM: 4}), decided("a", 0, 16, second=1), tells_pods=False)
    serve(desk, "b")
    assert at(desk, "b") == [1]


def test_pods_without_a_decision_leave_what_is_promised():
    desk = desk_of(pod_json("b", {MEM: 8}), decided("a", 0, 10), gpus=2)
    serve(desk, "b", 8)
    assert at(desk, "b") == [1]
    serve(desk, "a", 10)
    assert at(desk, "a") == [0]


def test_promised_units_are_refused_to_others_aloud():
    desk = desk_of(pod_json("b", {MEM: 8}), decided("a", 0, 10), gpus=1)
    refusal = desk.refusal(lambda: serve(desk, "b", 8))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "of 16 free on the node schedulers have reserved 10 for pods that are still to come" in refusal.message
    desk = desk_of(pod_json("b", {MEM: 8}), decided("a", 0, 10) | {"status": {"phase": "Failed"}}, gpus=1)
    serve(desk, "b", 8)


def test_what_is_promised_counts_for_compute_too():
    both = {MEM: 2, CORE: 80}
    desk = desk_of(
        pod_json("b", {MEM: 2, CORE: 30}), pod_json("a", both, annotations=v2({"0": {"0": 2}})), mode=Mode.CORE_MEM
    )
    serve(desk, "b", 30, resource=CORE)
    serve(desk, "b", 2)
    assert at(desk, "b") == at(desk, "b", resource=CORE) == [1]


def test_a_reservation_of_compute_alone_reserves_no_memory():
    decided_on = pod_json("a", {CORE: 80}, annotations=v2({"0": {"0": 80}}, CORE_ANNOTATION))
    desk = desk_of(pod_json("b", {MEM: 16}), decided_on, mode=Mode.CORE_MEM, gpus=1, core_mem_both=False)
    serve(desk, "b", 16)
    assert at(desk, "b") == [0]


def test_a_pod_that_is_being_deleted_has_nothing_promised():
    leaving = decided("a", 0, 16)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    desk = desk_of(pod_json("b", {MEM: 16}), leaving, gpus=1)
    serve(desk, "b", 16)
    assert at(desk, "b") == [0]


EVERY_GPU = {"0": {str(n): 16 for n in range(4)}}
IMPOSSIBLE = {
    "more than the GPU has": [pod_json("x", {MEM: 17}, annotations=v2({"0": {"1": 17}}))],
    "more than each of the GPUs has": [
        pod_json(
            "x",
            {MEM: 8000},
            annotations=v2({"0": {str(n): 2000 for n in range(4)}}),
            labels={GPU_COUNT_LABEL: "4"},
        )
    ],
    "its containers together more than the GPU has": [
        pod_json("x", {MEM: 16}, {MEM: 16}, annotations=v2({"0": {"1": 16}, "1": {"1": 16}}))
    ],
    "an init container that asks for more than the node has": [
        pod_json("x", {MEM: 64}, init=({MEM: 65},), annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"})
    ],
    "a resource that is at 0 in this mode": [
        pod_json("x", {MEM: 64, WHOLE: 1}, annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"})
    ],
    "another pod's UID": [
        pod_json(
            "x",
            {MEM: 64},
            annotations=v2(EVERY_GPU) | {DECIDED_ANNOTATION: "uid-y"},
            labels={GPU_COUNT_LABEL: "4"},
        )
    ],
    "a mirror pod": [
        pod_json("x", {MEM: 64}, annotations=v2(EVERY_GPU) | {MIRROR_ANNOTATION: "0"}, labels={GPU_COUNT_LABEL: "4"})
    ],
    "containers on different GPUs to which an init container hands on its units": [
        pod_json("x", {MEM: 16}, {MEM: 16}, init=({MEM: 17},), annotations=v2({"0": {"0": 16}, "1": {"1": 16}}))
    ],
    "several that are possible alone, on a GPU that has no room": [
        pod_json(f"x{n}", {MEM: 64}, annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"}) for n in range(3)
    ],
}


@pytest.mark.parametrize("hostile", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_decision_that_cannot_be_kept_reserves_nothing(hostile):
    """The pod without a decision asks for all that is left: one unit reserved for another would refuse it."""
    busy, *victims = pod_json("busy", {MEM: 2}), *(pod_json(f"victim-{n}", {MEM: 16}) for n in range(3))
    desk = desk_of(busy)
    serve(desk, "busy", 2)
    desk.pods(busy, *victims, *hostile)
    for victim in victims:
        serve(desk, victim["metadata"]["name"], 16)


@pytest.mark.parametrize("status", [None, {"phase": "Failed"}])
def test_a_decision_of_a_pod_that_kubelet_has_passed_over_reserves_nothing(status):
    """Kubelet asks for pods in the order in which they come, and tries none twice, whatever made it reject one."""
    rejected = pod_json("rejected", {MEM: 64}, annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"})
    desk = desk_of(rejected | ({"status": status} if status else {}), pod_json("victim", {MEM: 16}))
    serve(desk, "victim", 16)


def test_a_pod_that_was_made_later_is_not_passed_over_where_the_order_is_not_known():
    """Kubelet takes pods that it is shown at once by age. The agent may have been shown them in another order."""
    late = decided("late", 0, 16, second=30)
    desk = desk_of(late, pod_json("early", {MEM: 8}), gpus=2)
    serve(desk, "early", 8)
    assert at(desk, "early") == [1]


def test_a_decision_of_a_pod_that_runs_is_kept_where_kubelet_has_lost_its_checkpoint():
    runs = decided("runs", 0, 16)
    runs["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
    desk = desk_of(runs, pod_json("other", {MEM: 8}, created="2026-01-01T00:01:00Z"), gpus=2)
    serve(desk, "other", 8)
    assert at(desk, "other") == [1]


def test_reservations_are_never_more_than_is_free_and_the_oldest_come_first():
    desk = desk_of(pod_json("victim", {MEM: 6}), *(decided(f"x{n}", 0, 10, second=n + 1) for n in range(3)), gpus=1)
    serve(desk, "victim", 6)
    serve(desk, "x0", 10)


def test_kubelet_is_asked_only_where_schedulers_chose_gpus_for_pods_to_come():
    desk = desk_of(pod_json("a", {MEM: 4}), pod_json("b", {MEM: 4}, created="2026-01-01T00:00:01Z"))
    serve(desk, "b")
    assert desk.book.looks == 0
    desk = desk_of(*(decided(f"p{n}", 0, second=n) for n in range(3)))
    serve(desk, "p0")
    assert desk.book.looks == 1
    serve(desk, "p2")
    assert desk.book.looks == 2


def test_annotations_of_another_version_do_not_make_a_v1_decision_of_a_v2_one():
    both = {MEMORY_ANNOTATION: json.dumps({"0": {"3": 4}}), **v1(1, 4)}
    desk = desk_of(pod_json("a", {MEM: 4}, annotations=both))
    serve(desk, "a")
    assert at(desk, "a") == [3]
    assert an.V1_GPU in both


@pytest.mark.parametrize("left", [1, 3])
@pytest.mark.parametrize("size", [4, 16])
def test_a_pod_deleted_before_its_turn_takes_nothing_of_its_equals(left, size):
    """We hear of a forced deletion when kubelet is still to ask for the pod."""
    pods = [decided(f"p{n}", n, size) for n in range(left + 1)]
    desk = desk_of(*pods).pods(*pods[1:])
    serve(desk, "p0", size)
    for n in range(1, left + 1):
        serve(desk, f"p{n}", size)
        assert at(desk, f"p{n}") == [n]


@pytest.mark.parametrize("seen", ["seen", "cannot be seen"])
def test_the_first_question_after_a_start_waits_for_the_pods(seen):
    """Kubelet may ask before the API server has answered; where that fails, nobody waits any longer."""
    node = in_force(Mode.SHARE, box(4))
    allocator = Allocator(
        clock=time.monotonic,
        kubelet=FakeAllocations(),
        isolation=dict.fromkeys(("all", "none"), Isolation()),
        strategy=DeviceStrategy.DEVICE_NODES,
        send_event=lambda _: None,
    )
    allocator.expect_pods(60.0)
    allocator.publish(node.snap)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(allocator.prefer, MEM, sorted(node.ids(MEM)), (), 4)
        with pytest.raises(TimeoutError):
            asked.result(0.05)
        if seen == "seen":
            node.pods(decided("a", 3))
        else:
            node.tell(ev.ApiUnavailable("it hangs", 0.0, "pods"))
        allocator.publish(node.snap)
        uuids = {node.snap.units[device_id] for device_id in asked.result(20)}
    assert uuids == {uuid(3 if seen == "seen" else 0)}


@pytest.mark.parametrize("seen", [[], ["b"], ["b", "c"]])
def test_a_pod_that_only_kubelet_has_seen_is_read_from_the_api_server(seen):
    """Also where one pod alone could be meant, or all that could be are to get the same."""
    pods = {name: decided(name, 2, second=n) for n, name in enumerate("bc")}
    desk = desk_of(decided("served", 0, size=1), *map(pods.get, seen))
    serve(desk, "served", 1)
    desk.unseen = [decided("a", 3, second=9)]
    serve(desk, "a")
    assert at(desk, "a") == [3]


def test_a_node_s_first_decided_pod_is_read_from_the_api_server():
    desk = desk_of()
    desk.unseen = [decided("first", 3)]
    serve(desk, "first")
    assert at(desk, "first") == [3]


def test_a_pod_that_the_api_server_does_not_have_gets_what_is_not_reserved():
    """A static pod: it appears when it runs."""
    desk = desk_of(decided("served", 0), decided("a", 1, size=16, second=1), gpus=2)
    serve(desk, "served")
    serve(desk, "static")
    assert at(desk, "static") == [0]


def test_a_pod_that_cannot_be_read_is_refused_where_schedulers_decide():
    desk = desk_of(decided("served", 0))
    serve(desk, "served")
    desk.unseen = None
    refusal = desk.refusal(lambda: serve(desk, "a"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "the API server did not show the node's pods in time" in refusal.message
    plain = desk_of(pod_json("served", {MEM: 4}))
    serve(plain, "served")
    plain.unseen = None
    serve(plain, "a")


def test_where_no_scheduler_decides_pods_that_are_not_seen_cost_a_query_every_few_seconds():
    desk = desk_of(pod_json("served", {MEM: 4}))
    serve(desk, "served")
    assert desk.book.looks == 0
    for _ in range(3):
        serve(desk, "static")
    assert desk.book.looks == 1
    desk.node.now += REST_S
    serve(desk, "static")
    assert desk.book.looks == 2


def test_what_kubelet_has_given_a_pod_before_we_saw_it_counts():
    """Its memory was given to nobody known: its compute has to be on the same GPU."""
    both = {MEM: 4, CORE: 30}
    equals = [pod_json(name, both, annotations=v2({"0": {str(n + 1): 4}})) for n, name in enumerate(("a", "b"))]
    desk = desk_of(*equals, mode=Mode.CORE_MEM)
    serve(desk, "late")
    (unseen,) = at(desk, "late")
    desk.pods(*equals, pod_json("late", both, created="2026-01-01T00:00:09Z"))
    serve(desk, "late", 30, resource=CORE)
    assert at(desk, "late", resource=CORE) == [unseen]
    for n, name in enumerate(("a", "b")):
        serve(desk, name)
        serve(desk, name, 30, resource=CORE)
        assert at(desk, name) == at(desk, name, resource=CORE) == [n + 1]


def test_a_pod_made_anew_under_a_name_does_not_get_what_was_chosen_for_the_one_before():
    """A StatefulSet's: our watch shows the one before, which is being deleted, when kubelet asks for the new one."""
    old = decided("web-0", 0)
    desk = desk_of(old, decided("other", 2, second=1))
    serve(desk, "web-0")
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    desk.pods(old, decided("other", 2, second=1))
    desk.end("web-0")
    new = decided("web-0", 3, second=31)
    new["metadata"]["uid"] = "uid-new"
    desk.unseen = [new]
    serve(desk, "web-0")
    assert at(desk, "web-0") == [3]


def test_a_pod_without_a_decision_is_not_taken_for_a_decided_one_that_we_see_late():
    desk = desk_of(decided("served", 0), pod_json("u", {MEM: 4}, created="2026-01-01T00:00:01Z"))
    serve(desk, "served")
    desk.unseen = [decided("d", 1, second=2)]
    serve(desk, "d")
    assert at(desk, "d") == [1]


def test_no_list_is_read_while_kubelet_has_units_reserved_that_are_in_no_book():
    """What it has fixed for this call is an init container's, or it has filled up with it what NUMA alignment left."""
    init = pod_json("a", {MEM: 4}, annotations=v1(1, 4), init=({MEM: 2},))
    desk = desk_of(init, decided("b", 2, second=1))
    serve(desk, "a", 2, container="init-0")
    handed_on = desk.book.holdings.pop().ids
    desk.serve(owner("a"), MEM, 4, must=handed_on)
    assert desk.book.may_list == {True}
    (reserved, *_) = sorted(set(desk.free(MEM)) - handed_on)
    desk.book.may_list.clear()
    desk.prefer(MEM, 4, must=[reserved])
    assert desk.book.may_list == {False}


@pytest.mark.parametrize("of", ["the one before", "a file"])
def test_what_a_pod_of_the_same_name_still_holds_while_it_ends_is_not_the_new_ones(of):
    """Kubelet lists by name; the checkpoint has UIDs. A static pod has another one there all the time."""
    pod = decided("a", 1)
    if of == "a file":
        node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n", "controller": True}
        pod["metadata"]["ownerReferences"] = [node]
    desk = desk_of(pod, decided("b", 2, second=1))
    held = holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2, 3))
    entry = CheckpointEntry("uid-before", "main", MEM, held.ids)
    desk.book.holdings = [held]
    desk.node.tell(ev.HoldingsRead((held,), 1.0, 1.0, (entry,)))
    desk.publish()
    if of == "the one before":
        desk.book.holdings, desk.book.asking = [], "a"
    else:
        desk.book.asking = "b"
    chosen = desk.allocator.prefer(MEM, sorted(desk.node.ids(MEM) - held.ids), (), 4)
    assert {desk.snap.units[i] for i in chosen} == {uuid(1 if of == "the one before" else 2)}


# -- found by a hostile reader ---------------------------------------------------------------------------------------


def second_of(annotations, **labels):
    containers = {MEM: 4}, {MEM: 4}
    return pod_json("a", *containers, annotations=annotations, labels=labels, created="2026-01-01T00:00:01Z")


def test_a_restart_amid_an_admission_leaves_no_container_to_a_guess():
    """An equal pod waits; every decided pod holds something, so the new agent has seen no scheduler decide."""
    waiting = pod_json("b", {MEM: 4}, created="2026-01-01T00:00:02Z")
    desk = desk_of(second_of(v2({"0": {"2": 4}, "1": {"3": 4}})), waiting)
    serve(desk, "a")
    again = NodeWithKubelet(desk.node, desk.book).read_book()
    serve(again, "a", container="main-1")
    assert at(again, "a", "main-1") == [3]


def test_a_restart_amid_an_admission_leaves_the_label_in_force():
    waiting = pod_json("b", {MEM: 4}, created="2026-01-01T00:00:02Z")
    desk = desk_of(second_of({}, **{GPU_COUNT_LABEL: "2"}), waiting)
    serve(desk, "a")
    again = NodeWithKubelet(desk.node, desk.book).read_book()
    serve(again, "a", container="main-1")
    assert len(at(again, "a", "main-1")) == 2


@pytest.mark.parametrize("order", [(MEM, CORE), (CORE, MEM)])
def test_reserved_memory_is_not_taken_by_a_pod_that_asks_for_compute_first(order):
    amounts = {MEM: 4, CORE: 10}
    large = [
        pod_json(name, {MEM: 8, CORE: 10}, annotations=v2({"0": {"0": 8}}), created=f"2026-01-01T00:00:0{n}Z")
        for n, name in ((0, "x"), (2, "a"))
    ]
    desk = desk_of(large[0], mode=Mode.CORE_MEM, gpus=2)
    serve(desk, "x", 8)
    serve(desk, "x", 10, resource=CORE)
    desk.pods(large[0], pod_json("b", amounts, created="2026-01-01T00:00:01Z"), large[1])
    for resource in order:
        serve(desk, "b", amounts[resource], resource=resource)
    serve(desk, "a", 8)
    assert (at(desk, "b"), at(desk, "a")) == ([1], [0])


def test_a_refusal_on_a_guess_bars_no_pod():
    """Which of two equal pods was refused is not known; the other one keeps what its label asks for."""
    pair = [pod_json(name, {MEM: 40}, labels={GPU_COUNT_LABEL: "2"}, created=f"{n}") for n, name in enumerate("ab")]
    desk = desk_of(*pair, gpus=2)
    desk.book.asking = "b"
    assert desk.refusal(lambda: desk.prefer(MEM, 40)).reason is Reason.NOT_ENOUGH
    assert desk.allocator.view().tracker.refused == frozenset()


def test_a_pod_that_another_plugin_has_served_is_read_from_the_api_server():
    desk = desk_of(decided("served", 0))
    serve(desk, "served")
    desk.unseen = [decided("late", 3)]
    desk.book.holdings.append(holding("late", {"mlx5_0"}, "rdma/hca"))
    serve(desk, "late")
    assert at(desk, "late") == [3]


def test_an_ignored_annotation_does_not_make_kubelet_be_queried_for_good():
    desk = desk_of(pod_json("hostile", {MEM: 4}, annotations=v1(1, 9)))
    assert not desk.snap.schedulers
    assert desk_of(decided("a", 1)).snap.schedulers


def again(pod, index, second):
    """A pod that takes the name of `pod`, as a StatefulSet makes it."""
    new = decided(pod["metadata"]["name"], index, second=second)
    new["metadata"]["uid"] += "-again"
    return new


def test_a_deleted_pod_that_kubelet_still_asks_for_does_not_get_what_was_chosen_for_the_next_of_its_name():
    old, other = decided("web-0", 0), decided("other", 1, second=1)
    new = again(old, 3, second=2)
    desk = desk_of(other, old).pods(other).pods(other, new)
    refusal = desk.refusal(lambda: serve(desk, "web-0"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "pod ml/web-0 was deleted a moment ago, and kubelet lists no UIDs" in refusal.message
    serve(desk, "web-0")
    assert at(desk, "web-0") == [3]


def test_names_of_equal_pods_are_used_again_while_kubelet_lists_the_deleted_ones():
    """As seen on kubelets 1.30 and 1.36: a deleted pod that was refused stays in the list until kubelet removes it."""
    old = [decided(f"p{n}", n) for n in range(4)]
    new = [again(old[n], 7 - n, second=1) for n in (0, 2)]
    desk = desk_of(*old, gpus=8).pods(old[1], old[3], *new)
    for deleted, other in (("p0", "p1"), ("p2", "p3")):
        assert desk.refusal(lambda name=deleted: serve(desk, name)).reason is Reason.UNKNOWN_POD
        desk.book.rejected.add(deleted)
        serve(desk, other)
    for name in ("p0", "p2"):
        serve(desk, name)
    assert [at(desk, f"p{n}") for n in range(4)] == [[7], [1], [5], [3]]


def test_pods_that_are_gone_are_not_remembered_as_refused():
    desk = desk_of(gpus=1)
    for n in range(10):
        desk.pods(decided(f"p{n}", 0))
        serve(desk, f"p{n}")
        desk.read_book()
        desk.book.holdings.clear()
        desk.node.now += 31
    assert len(desk.allocator.view().tracker.refused) <= 1


def test_a_pod_that_took_a_deleted_pods_name_is_read_from_the_api_server():
    """What is in doubt is refused: kubelet may still be asking for the one before."""
    old, other = decided("web-0", 0), decided("other", 1, second=1)
    desk = desk_of(other, old).pods(other)
    desk.unseen = [again(old, 3, second=2)]
    assert desk.refusal(lambda: serve(desk, "web-0")).reason is Reason.UNKNOWN_POD


@pytest.mark.parametrize("how", ["by kubelet", "by the agent"])
def test_a_rejected_pod_does_not_hide_the_next_of_its_name(how):
    old, other = decided("web-0", 9 if how == "by the agent" else 0), decided("other", 1, second=1)
    desk = desk_of(old, other)
    if how == "by the agent":
        assert desk.refusal(lambda: serve(desk, "web-0")).reason is Reason.GPU_DECISION
    else:
        desk.pods(old | {"status": {"phase": "Failed"}}, other)
    desk.unseen = [again(old, 3, second=2)]
    serve(desk, "web-0")
    assert at(desk, "web-0") == [3]


def test_units_that_kubelet_picks_itself_are_not_granted_on_a_guess():
    desk = desk_of(decided("a", 0), decided("b", 1, second=1))
    ids = unit_ids(1, Kind.MEMORY_SHARE, 0, 1, 2, 3)
    assert desk.refusal(lambda: desk.allocator.allocate(MEM, ids)).reason is Reason.UNKNOWN_POD


def test_units_given_before_are_granted_again_whatever_pods_wait():
    desk = desk_of(decided("a", 0))
    serve(desk, "a")
    desk.pods(decided("a", 0), decided("b", 1, second=1), decided("c", 2, second=2))
    (held,) = desk.book.holdings
    assert desk.allocator.allocate(MEM, held.ids).units == 4


def test_pods_whose_init_containers_alone_hold_units_do_not_keep_another_from_being_read():
    inits = [pod_json(f"i{n}", {}, init=({MEM: 1},), created=f"2026-01-01T00:01:{n:02}Z") for n in range(50)]
    desk = desk_of(decided("served", 0), *inits)
    serve(desk, "served")
    for n in range(50):
        serve(desk, f"i{n}", 1, "init-0")
        desk.book.rejected.add(f"i{n}")  # kubelet lists nothing of them
        desk.book.holdings.pop()
    desk.unseen = [decided("z", 3, second=59)]
    serve(desk, "z")
    assert at(desk, "z") == [3]


def test_compute_is_not_given_beside_memory_of_a_pod_that_kubelet_may_have_given_up():
    pods = [
        pod_json(name, {MEM: 4, CORE: 30}, annotations=v2({"0": {str(n): 4}}), created=f"2026-01-01T00:00:0{n}Z")
        for n, name in enumerate("ab")
    ]
    desk = desk_of(*pods, mode=Mode.CORE_MEM)
    serve(desk, "a")
    desk.book.tells_pods = False
    assert desk.refusal(lambda: serve(desk, "b", 30, resource=CORE)).reason is Reason.UNKNOWN_POD


@pytest.mark.parametrize("unlike", ["replicas", "containers"])
def test_kubelet_is_queried_where_jobs_of_unlike_sizes_want_gpus_for_later(unlike):
    """How many more GPUs a job will want decides which ones are best now."""
    sizes, replicas = ([1, 2], "22") if unlike == "containers" else ([1, 1], "24")
    pods = [
        pod_json(name, *([{WHOLE: 1}] * count), labels={JOB_LABEL: "job", REPLICAS_LABEL: label})
        for name, count, label in zip("ab", sizes, replicas, strict=True)
    ]
    desk = desk_of(*pods, mode=Mode.TOPOLOGY)
    serve(desk, "a", 1, resource=WHOLE)
    assert desk.book.looks == 1
