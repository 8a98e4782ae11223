"""Mode topology at the allocator: sets, jobs, what a scheduler decided, and what containers are told."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import (
    GROUP_ANNOTATION,
    JOB_LABEL,
    REPLICAS_LABEL,
    VISIBLE_ANNOTATION,
    Kind,
    Mode,
    Resources,
)
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import (
    DGX1V,
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

pytestmark = pytest.mark.usefixtures("impatient")


def mesh(*pods, gpus=None, trusted=True) -> FakeKubelet:
    """A DGX-1V in mode topology; `trusted` is whether the annotation gpu-visible is a scheduler's."""
    node = in_force(Mode.TOPOLOGY, gpus or box(8), trust_visible=trusted)
    node.inventory(*(gpus or box(8)), wiring=DGX1V)
    return FakeKubelet(node).pods(*pods)


def job(name, size, replicas="2", **more):
    labels = {JOB_LABEL: "train", REPLICAS_LABEL: replicas}
    return pod_json(name, *([{WHOLE: size}] if isinstance(size, int) else size), labels=labels, **more)


def named(name, size, group, visible=None, **more):
    annotations = {GROUP_ANNOTATION: group} | ({VISIBLE_ANNOTATION: visible} if visible else {})
    return pod_json(name, {WHOLE: size}, annotations=annotations, **more)


def indexes(share) -> list[int]:
    return [gpu.index for gpu in share.gpus]


def on(kubelet, pod) -> set[int]:
    return {kubelet.snap.gpus[u].index for u in kubelet.on(owner(pod), WHOLE)}


def in_environment(share, name="NVIDIA_VISIBLE_DEVICES") -> list[int]:
    return [int(text[-12:], 16) for text in share.env[name].split(",")]


def test_a_pod_gets_the_best_set_in_the_order_of_its_ring():
    kubelet = mesh(pod_json("a", {WHOLE: 4}))
    share = kubelet.serve(owner("a"), WHOLE, 4)
    assert in_environment(share) == indexes(share) == [0, 1, 2, 3]
    assert in_environment(mesh(pod_json("b", {WHOLE: 8})).serve(owner("b"), WHOLE, 8)) == [0, 3, 2, 1, 5, 6, 7, 4]
    assert "CUDA_VISIBLE_DEVICES" not in share.env


def test_gpus_that_were_named_for_another_pod_are_not_named():
    """A copy of a decided pod carries the UID of the pod that was decided on."""
    copy = named("copy", 1, "5", visible="5,6")
    copy["metadata"]["annotations"][DECIDED_ANNOTATION] = "uid-first"
    kubelet = mesh(copy)
    assert in_environment(kubelet.serve(owner("copy"), WHOLE, 1)) == [0]
    copy["metadata"]["annotations"][DECIDED_ANNOTATION] = "uid-copy"
    assert in_environment(mesh(copy).serve(owner("copy"), WHOLE, 1)) == [5, 6]


def test_copies_do_not_differ_by_the_gpus_of_the_pods_they_were_copied_from():
    """No scheduler decided, so kubelet is not queried; and where it does not answer, equal pods are served alike."""
    copies = [named(name, 1, group) for name, group in (("a", "5"), ("b", "6"))]
    for copy in copies:
        copy["metadata"]["annotations"][DECIDED_ANNOTATION] = "uid-first"
    kubelet = mesh(*copies)
    kubelet.allocations.answers_queries = False
    assert indexes(kubelet.serve(owner("a"), WHOLE, 1)) == [0]
    assert kubelet.allocations.queries == 0


@pytest.mark.parametrize(("uid", "decided"), [("uid-first", False), ("uid-a", True)])
def test_kubelet_is_queried_only_for_gpus_that_were_named_for_this_pod(uid, decided):
    pod = named("a", 1, "5")
    pod["metadata"]["annotations"][DECIDED_ANNOTATION] = uid
    assert mesh(pod).snap.schedulers.assumed is decided


def test_pods_of_a_job_get_sets_that_fit_together():
    kubelet = mesh(pod_json("other", {WHOLE: 1}), job("w0", 1), job("w1", 1, created="2026-01-01T00:00:01Z"))
    kubelet.serve(owner("other"), WHOLE, 1)
    kubelet.serve(owner("w0"), WHOLE, 1)
    kubelet.serve(owner("w1"), WHOLE, 1)
    assert on(kubelet, "other") == {0}
    assert on(kubelet, "w0") | on(kubelet, "w1") == {2, 3}


def test_a_job_goes_on_from_its_pods_after_a_restart_of_the_agent():
    pods = job("w0", 2), job("w1", 2)
    kubelet = mesh(pods[0])
    kubelet.serve(owner("w0"), WHOLE, 2)
    again = FakeKubelet(mesh(*pods).node, kubelet.allocations).read_allocations()
    again.serve(owner("w1"), WHOLE, 2)
    assert on(again, "w0") | on(again, "w1") == {0, 1, 2, 3}


def test_jobs_of_one_name_in_two_namespaces_are_two_jobs():
    """The second pod of a job gets the GPU beside the first one's, and one of another job does not."""

    def second_gpu(namespace: str) -> list[int]:
        first = job("w0", 1)
        first["metadata"]["namespace"] = namespace
        kubelet = mesh(first)
        assert in_environment(kubelet.serve(ContainerRef(PodName(namespace, "w0"), "main"), WHOLE, 1)) == [0]
        kubelet.pods(first, job("w1", 1))
        return in_environment(kubelet.serve(owner("w1"), WHOLE, 1))

    assert second_gpu("ml") == [3]
    assert second_gpu("elsewhere") == [2]


def test_a_pod_of_another_namespace_is_never_shown_the_gpus_of_a_job_of_that_name():
    victim = job("w0", 1)
    victim["metadata"]["namespace"] = "elsewhere"
    kubelet = mesh(victim)
    kubelet.serve(ContainerRef(PodName("elsewhere", "w0"), "main"), WHOLE, 1)
    kubelet.pods(victim, named("hostile", 1, "3", "0,3", labels={JOB_LABEL: "train"}))
    refusal = kubelet.refusal(lambda: kubelet.serve(owner("hostile"), WHOLE, 1))
    assert "shows it GPU 0, which elsewhere/w0[main] has; it is not of the same job" in refusal.message


def test_containers_of_one_pod_get_sets_that_fit_together():
    kubelet = mesh(pod_json("taken", {WHOLE: 1}), pod_json("a", {WHOLE: 1}, {WHOLE: 1}))
    kubelet.serve(owner("taken"), WHOLE, 1)
    kubelet.serve(owner("a"), WHOLE, 1)
    kubelet.serve(owner("a", "main-1"), WHOLE, 1)
    assert kubelet.on(owner("a"), WHOLE) | kubelet.on(owner("a", "main-1"), WHOLE) == {uuid(2), uuid(3)}


def test_a_replica_label_that_is_no_number_counts_as_one():
    kubelet = mesh(job("w0", 1, replicas="many"), job("w1", 1, replicas="many"))
    kubelet.serve(owner("w0"), WHOLE, 1)
    kubelet.serve(owner("w1"), WHOLE, 1)
    assert on(kubelet, "w0") | on(kubelet, "w1") == {0, 3}


def test_what_a_scheduler_decided_is_granted():
    kubelet = mesh(named("a", 2, "5,0"))
    assert sorted(indexes(kubelet.serve(owner("a"), WHOLE, 2))) == [0, 5]


def test_a_decision_names_gpus_by_minor_number_or_uuid():
    gpus = tuple(gpu(n, minor=7 - n) for n in range(8))
    assert indexes(mesh(named("a", 2, " 7, 6 "), gpus=gpus).serve(owner("a"), WHOLE, 2)) == [0, 1]
    assert indexes(mesh(named("a", 2, f"{uuid(4)},{uuid(1)}"), gpus=gpus).serve(owner("a"), WHOLE, 2)) == [1, 4]


def test_containers_share_what_was_decided_for_their_pod():
    pod = pod_json("a", {WHOLE: 2}, {WHOLE: 2}, annotations={GROUP_ANNOTATION: "0,3,5,6"})
    kubelet = mesh(pod)
    assert sorted(indexes(kubelet.serve(owner("a"), WHOLE, 2))) == [0, 3]
    assert sorted(indexes(kubelet.serve(owner("a", "main-1"), WHOLE, 2))) == [5, 6]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("0,1", "GPU 0 is not free"),
        ("9,1", "names '9', and this node has no such GPU"),
        ("1,", "names '', and this node has no such GPU"),
        ("one,two", "names 'one', and this node has no such GPU"),
        ("1,1", "names a GPU twice: '1,1'"),
        ("1," * 500 + "1", f"names a GPU twice: '{'1,' * 30}…'"),
        ("x" * 1000, f"names '{'x' * 60}…', and this node has no such GPU"),
        ("1," * 50_000 + "1", f"is no list of GPUs: '{'1,' * 30}'… (not read: it is too long"),
        ("1", "names 1 GPUs, and the pod asks for 2 of aliyun.com/gpu"),
        ("1,2,3", "names 3 GPUs, and the pod asks for 2 of aliyun.com/gpu"),
    ],
)
def test_decisions_that_cannot_be_followed_are_refused_with_the_reason(group, expected):
    taken = pod_json("taken", {WHOLE: 1})
    kubelet = mesh(taken)
    kubelet.serve(owner("taken"), WHOLE, 1)
    kubelet.pods(taken, named("a", 2, group))
    refusal = kubelet.refusal(lambda: kubelet.prefer(WHOLE, 2))
    assert refusal.reason is Reason.GPU_GROUP
    assert expected in refusal.message
    assert "ml/a" in refusal.message
    assert (PodName("ml", "a"), "GPURefused", refusal.message) in kubelet.events


def test_named_gpus_that_kubelet_keeps_back_are_not_shown_as_held():
    kubelet = mesh(pod_json("taken", {WHOLE: 1}), named("a", 2, "5,7", created="2026-01-01T00:00:01Z"))
    kubelet.serve(owner("taken"), WHOLE, 1)
    aligned = [f"{key(n)}-gt-0" for n in (1, 2, 3)]
    assert (
        "kubelet does not offer GPU 5, GPU 7, though free"
        in kubelet.refusal(lambda: kubelet.allocator.prefer(WHOLE, aligned, (), 2)).message
    )


def test_a_kubelet_that_picks_other_gpus_than_were_decided_is_refused():
    kubelet = mesh(named("a", 2, "0,5"))
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(WHOLE, [f"{key(n)}-gt-0" for n in (0, 3)]))
    assert refusal.reason is Reason.GPU_GROUP
    assert "kubelet picked GPU 0, 3 for ml/a[main], and the pod's annotation" in refusal.message
    assert sorted(indexes(kubelet.allocator.allocate(WHOLE, [f"{key(n)}-gt-0" for n in (0, 5)]))) == [0, 5]


def test_a_decision_for_one_pod_does_not_spoil_an_equal_pod():
    kubelet = mesh(named("a", 2, "0,99"), pod_json("b", {WHOLE: 2}))
    assert sorted(indexes(kubelet.allocator.allocate(WHOLE, [f"{key(n)}-gt-0" for n in (1, 2)]))) == [1, 2]


def test_containers_of_a_job_see_what_the_scheduler_shows_them_their_own_first():
    kubelet = mesh(
        named("w0", 1, "3", "0,3", labels={JOB_LABEL: "train"}), named("w1", 1, "0", "0,3", labels={JOB_LABEL: "train"})
    )
    first = kubelet.serve(owner("w0"), WHOLE, 1)
    assert indexes(first) == [3]
    assert in_environment(first) == in_environment(first, "CUDA_VISIBLE_DEVICES") == [3, 0]
    assert {"/dev/nvidia0", "/dev/nvidia3"} <= set(first.device_nodes)
    second = kubelet.serve(owner("w1"), WHOLE, 1)
    assert indexes(second) == [0]
    assert in_environment(second) == [0, 3]
    assert on(kubelet, "w0") == {3}


def pair_of_a_job(*more) -> FakeKubelet:
    """w0 runs on GPU 0; w1 shall have GPU 3 and see GPU 0, which is w0's."""
    labels = {JOB_LABEL: "train"}
    first, second = named("w0", 1, "0", "0,3", labels=labels), named("w1", 1, "3", "0,3", labels=labels)
    kubelet = mesh(first)
    kubelet.serve(owner("w0"), WHOLE, 1)
    return kubelet.pods(first, second, *more)


def test_the_same_ids_show_the_same_gpus_also_to_a_new_agent():
    kubelet = pair_of_a_job()
    assert in_environment(kubelet.serve(owner("w1"), WHOLE, 1)) == [3, 0]
    ids = kubelet.allocations.holdings[-1].ids
    assert in_environment(kubelet.allocator.allocate(WHOLE, ids)) == [3, 0]
    again = FakeKubelet(kubelet.node)
    again.allocations = kubelet.allocations
    again.read_allocations()
    assert in_environment(again.allocator.allocate(WHOLE, ids)) == [3, 0]


@pytest.mark.parametrize("visible", ["3,4,5,6,7", "0,3", "9", "x", "3,3"])
@pytest.mark.parametrize("labels", [{}, {JOB_LABEL: "train"}])
def test_a_pod_sees_its_own_gpus_only_unless_a_scheduler_is_trusted_with_the_annotation(visible, labels):
    """Any author of a pod can write it: it asks for one GPU, and for the sight of others, also of those of an equal job."""
    victim = pod_json("victim", {WHOLE: 1}, labels=labels)
    hostile = pod_json("hostile", {WHOLE: 1}, labels=labels, annotations={VISIBLE_ANNOTATION: visible})
    kubelet = mesh(victim, hostile, trusted=False)
    kubelet.serve(owner("victim"), WHOLE, 1)
    kubelet.allocations.admitting = "hostile"
    share = kubelet.serve(owner("hostile"), WHOLE, 1)
    assert in_environment(share) == indexes(share)
    assert share.visible_gpus == ()
    assert kubelet.allocator.prestart(WHOLE, kubelet.allocations.holdings[-1].ids) == owner("hostile")


def test_a_pod_that_does_not_see_what_the_annotation_says_gets_the_reason():
    kubelet = mesh(named("a", 1, "3", "0,3"), trusted=False)
    assert in_environment(kubelet.serve(owner("a"), WHOLE, 1)) == [3]
    kubelet.allocator.prestart(WHOLE, kubelet.allocations.holdings[-1].ids)
    ((pod, reason, text),) = kubelet.events
    assert (pod, reason) == (PodName("ml", "a"), "GPUGroupDiffers")
    assert text.endswith("gpu-visible names '0,3', and it sees GPU 3: --trust-gpu-visible is off")


def test_the_gpus_of_a_job_that_our_scheduler_names_for_agents_which_trust_it_are_no_warning():
    pod = named("a", 1, "3", visible="0,3")
    pod["metadata"]["annotations"][DECIDED_ANNOTATION] = pod["metadata"]["uid"]
    kubelet = mesh(pod, trusted=False)
    assert in_environment(kubelet.serve(owner("a"), WHOLE, 1)) == [3]
    assert kubelet.events == []


@pytest.mark.parametrize("rejected", [set(), {"a"}])
def test_other_gpus_are_shown_only_where_kubelet_lists_one_pod_that_could_be_meant(rejected):
    """Before 1.34 kubelet still lists a pod that it rejected a moment ago."""
    kubelet = mesh(named("a", 1, "3", "0,3"), named("b", 1, "4", "4,7"))
    kubelet.allocations.rejected = rejected
    share = kubelet.serve(owner("b"), WHOLE, 1)
    assert in_environment(share) == ([4] if rejected else [4, 7])
    why = "gpu-visible names '4,7', and it sees GPU 4: the agent cannot identify the requesting pod for certain"
    assert [text.endswith(why) for _, _, text in kubelet.events] == [True] * len(rejected)


def test_a_pod_that_the_watch_has_not_shown_sees_its_own_gpus_alone():
    kubelet = pair_of_a_job()
    share = kubelet.serve(owner("stranger"), WHOLE, 1)
    assert in_environment(share) == indexes(share) != [3]
    assert "CUDA_VISIBLE_DEVICES" not in share.env


def test_no_gpu_of_a_job_is_shown_while_pods_are_not_watched():
    kubelet = pair_of_a_job()
    kubelet.node.send(ev.ApiUnavailable("away", kubelet.node.now, "pods"))
    kubelet.publish()
    assert in_environment(kubelet.serve(owner("w1"), WHOLE, 1)) == [3]


def test_what_one_pod_is_to_see_and_cannot_is_nothing_to_equal_pods():
    taken = pod_json("taken", {WHOLE: 1})
    kubelet = mesh(taken)
    kubelet.allocations.answers_queries = False
    kubelet.serve(owner("taken"), WHOLE, 1)
    bad = pod_json("bad", {WHOLE: 1}, annotations={VISIBLE_ANNOTATION: "0,1"}, created="2026-01-01T00:00:01Z")
    kubelet.pods(taken, bad, pod_json("good", {WHOLE: 1}, created="2026-01-01T00:00:02Z"))
    share = kubelet.serve(owner("good"), WHOLE, 1)
    assert in_environment(share) == indexes(share)


def test_pods_with_different_groups_are_refused_where_kubelet_does_not_answer():
    kubelet = mesh(named("a", 1, "5"), named("b", 1, "6"))
    kubelet.allocations.answers_queries = False
    refusal = kubelet.refusal(lambda: kubelet.serve(owner("b"), WHOLE, 1))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "a scheduler chose GPUs for ml/a, ml/b" in refusal.message


def test_pods_with_groups_are_distinguished_where_kubelet_says_which_it_knows():
    kubelet = mesh(named("a", 1, "5"), named("b", 1, "6"), pod_json("c", {WHOLE: 1}, created="2026-01-01T00:00:09Z"))
    for name, index in (("b", 6), ("a", 5)):
        kubelet.allocations.admitting = name
        kubelet.serve(owner(name), WHOLE, 1)
        assert on(kubelet, name) == {index}


def test_gpus_that_a_scheduler_chose_for_others_are_left_to_them_as_long_as_there_are_more():
    kubelet = mesh(pod_json("a", {WHOLE: 2}), named("b", 4, "0,1,2,3"))
    kubelet.serve(owner("a"), WHOLE, 2)
    assert on(kubelet, "a") == {4, 7}
    assert sorted(indexes(kubelet.serve(owner("b"), WHOLE, 4))) == [0, 1, 2, 3]


def test_a_pod_with_a_decision_that_cannot_be_followed_does_not_get_what_was_chosen_for_another():
    taken = pod_json("taken", {WHOLE: 1})
    kubelet = mesh(taken)
    kubelet.serve(owner("taken"), WHOLE, 1)
    kubelet.pods(taken, named("stale", 2, "0,1"), named("sound", 2, "4,5", created="2026-01-01T00:00:01Z"))
    kubelet.allocations.admitting = "stale"
    assert "GPU 0 is not free" in kubelet.refusal(lambda: kubelet.prefer(WHOLE, 2)).message
    assert sorted(indexes(kubelet.serve(owner("sound"), WHOLE, 2))) == [4, 5]


def test_a_named_gpu_that_has_become_unhealthy_is_refused():
    kubelet = mesh(named("a", 2, "0,3"))
    offered = sorted(kubelet.node.ids(WHOLE))
    kubelet.node.send(ev.XidRaised(uuid(3), 79, kubelet.node.now))
    kubelet.publish()
    assert "GPU 3 is unhealthy" in kubelet.refusal(lambda: kubelet.allocator.prefer(WHOLE, offered, (), 2)).message


def test_what_was_chosen_for_a_pod_that_has_its_gpus_is_reserved_for_no_pod():
    pods = pod_json("b", {WHOLE: 2}), named("b", 2, "4,7")
    kubelet = mesh(pods[0])
    kubelet.serve(owner("b"), WHOLE, 2)
    assert on(kubelet, "b") == {0, 3}
    kubelet.pods(pods[1], pod_json("c", {WHOLE: 4}))
    kubelet.serve(owner("c"), WHOLE, 4)
    assert on(kubelet, "c") == {4, 5, 6, 7}


def test_a_sidecars_gpu_is_not_handed_on():
    pod = pod_json("a", {WHOLE: 1}, init=({WHOLE: 2},), sidecar=({WHOLE: 1},), annotations={GROUP_ANNOTATION: "0,3,5"})
    pod["spec"]["initContainers"].reverse()
    kubelet = mesh(pod)
    assert len(indexes(kubelet.serve(owner("a", "side-0"), WHOLE, 1))) == 1
    assert len(indexes(kubelet.serve(owner("a", "init-0"), WHOLE, 2))) == 2


def test_in_mode_default_a_topology_decision_is_nothing():
    node = in_force(Mode.DEFAULT, box(8), resources=Resources("nvidia.com/gpu"))
    node.inventory(*box(8), wiring=DGX1V)
    kubelet = FakeKubelet(node).pods(pod_json("a", {"nvidia.com/gpu": 2}, annotations={GROUP_ANNOTATION: "9,x"}))
    assert sorted(indexes(kubelet.serve(owner("a"), "nvidia.com/gpu", 2))) == [0, 3]


def test_a_gpu_of_a_former_mode_or_in_mig_mode_is_not_shown():
    gpus = (*box(7), gpu(7, mig=True))
    for visible, name in (("0,3", "GPU 0"), ("3,7", "GPU 7")):
        node = in_force(Mode.SHARE, gpus, trust_visible=True)
        node.inventory(*gpus, wiring=DGX1V).holdings(holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0)))
        node.label("topology").wait(3).holdings(holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0)))
        kubelet = FakeKubelet(node).pods(pod_json("old", {MEM: 1}), named("a", 1, "3", visible))
        refusal = kubelet.refusal(lambda kubelet=kubelet: kubelet.serve(owner("a"), WHOLE, 1))
        assert f"shows it {name}, which is not advertised" in refusal.message


def test_a_gpu_whose_slot_another_one_has_is_neither_chosen_nor_missed():
    kubelet = mesh(pod_json("a", {WHOLE: 2}))
    offered = sorted(kubelet.node.ids(WHOLE))
    new = gpu(3, uuid="GPU-ffffffff-0000-0000-0000-000000000003")
    kubelet.node.inventory(*(new if n == 3 else gpu(n) for n in range(8)), wiring=DGX1V)
    kubelet.publish()
    assert f"{key(3)}-gt-0" in offered
    chosen = kubelet.allocator.prefer(WHOLE, offered, (), 2)
    assert f"{key(3)}-gt-0" not in chosen
    refusal = kubelet.refusal(lambda: kubelet.allocator.prefer(WHOLE, offered, [f"{key(3)}-gt-0"], 2))
    assert "GPU 3, which kubelet has fixed, is not there any more" in refusal.message
    assert kubelet.allocator.allocate(WHOLE, [f"{key(3)}-gt-0"]).gpus[0].index == 3


def test_a_gpu_that_a_stranger_has_is_not_shown():
    kubelet = mesh(pod_json("stranger", {WHOLE: 1}), named("a", 1, "3", "0,3", created="2026-01-01T00:00:01Z"))
    kubelet.serve(owner("stranger"), WHOLE, 1)
    refusal = kubelet.refusal(lambda: kubelet.serve(owner("a"), WHOLE, 1))
    assert refusal.reason is Reason.GPU_GROUP
    assert "shows it GPU 0, which ml/stranger[main] has; it is not of the same job" in refusal.message


def test_the_same_ids_get_the_same_answer():
    kubelet = mesh(job("w0", 2))
    share = kubelet.serve(owner("w0"), WHOLE, 2)
    assert kubelet.allocator.allocate(WHOLE, kubelet.allocations.holdings[0].ids) == share


def made_again(pod):
    """Another pod of that name, as a StatefulSet or an operator makes it."""
    pod["metadata"]["uid"] += "-again"
    return pod


def test_what_a_pod_had_is_in_no_doubt_when_its_pod_was_made_again():
    kubelet = mesh(named("w0", 3, "5,6,7"))
    kubelet.serve(owner("w0"), WHOLE, 3)
    kubelet.end("w0")
    kubelet.pods(made_again(named("w0", 2, "1,6")))
    kubelet.serve(owner("w0"), WHOLE, 2)
    kubelet.pods(made_again(named("w0", 2, "1,6")), pod_json("other", {WHOLE: 1}))
    kubelet.serve(owner("other"), WHOLE, 1)
    assert on(kubelet, "other") == {5}, "5 was in the hands of the pod before, and is free beyond doubt"


def test_a_pod_made_again_asks_for_the_first_time_whatever_numa_node_kubelet_offers():
    kubelet = mesh(pod_json("w0", {WHOLE: 1}))
    kubelet.serve(owner("w0"), WHOLE, 1)
    kubelet.end("w0")
    kubelet.pods(made_again(named("w0", 2, "5,7")))
    aligned = [f"{key(n)}-gt-0" for n in (4, 5, 6, 7)]
    chosen = kubelet.allocator.prefer(WHOLE, aligned, (), 2)
    assert sorted(indexes(kubelet.allocator.allocate(WHOLE, chosen))) == [5, 7]
