"""What a mode promises, checked before a container starts: by what kubelet has recorded, although no pod was known."""

import pytest

from gpuagent.domain.events import HoldingsRead
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind, Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import CORE, MEM, box, holding, in_force, owner, pod_json, unit_ids

MM, CM, SHARE = Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM, Kind.MEMORY_SHARE
HALVES = {MEM: unit_ids(0, MM, *range(4)), CORE: unit_ids(0, CM, *range(30))}

pytestmark = pytest.mark.usefixtures("impatient")


def core_mem(**policy) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.CORE_MEM, box(2), **{"core_step": 5, "core_mem_both": True, **policy}))


def given(kubelet: FakeKubelet, name: str, *resources: str, container: str = "main") -> None:
    """Kubelet admits a container that the API server has not shown."""
    for resource in resources:
        kubelet.allocator.allocate(resource, HALVES[resource])
        kubelet.allocations.holdings.append(holding(name, HALVES[resource], resource, container))


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize(("resource", "other"), [(MEM, CORE), (CORE, MEM)])
def test_one_resource_alone_does_not_start_in_core_mem_although_no_pod_is_known(resource, other, restarted):
    kubelet = core_mem()
    given(kubelet, "a", resource)
    if restarted:
        kubelet = FakeKubelet(kubelet.node, kubelet.allocations)
    for _ in range(2):  # kubelet tries again
        refusal = kubelet.refusal(lambda: kubelet.allocator.prestart(resource, HALVES[resource]))
        assert refusal.reason is Reason.CORE_MEM_BOTH
        assert f"ml/a[main] has it and nothing of {other}" in refusal.message
    assert kubelet.isolation.verified == []


def test_one_resource_alone_starts_where_the_operator_allows_it():
    kubelet = core_mem(core_mem_both=False)
    given(kubelet, "a", CORE)
    assert kubelet.allocator.prestart(CORE, HALVES[CORE]) == owner("a")


def test_both_start_also_where_the_allocations_were_read_between_the_two():
    kubelet = core_mem()
    given(kubelet, "a", MEM)
    kubelet.node.now += 1
    kubelet.read_allocations()
    given(kubelet, "a", CORE)
    assert kubelet.allocator.prestart(MEM, HALVES[MEM]) == owner("a")
    assert kubelet.allocations.reads == 1


def test_the_container_is_named_although_the_checkpoint_was_read_after_it_was_admitted_and_the_list_before():
    kubelet = core_mem()
    for resource, ids in HALVES.items():
        kubelet.allocator.allocate(resource, ids)
        kubelet.allocations.checkpoint.append(CheckpointEntry("uid-a", "main", resource, ids))
    kubelet.node.now += 1
    kubelet.node.send(HoldingsRead((), kubelet.node.now, kubelet.node.now, tuple(kubelet.allocations.checkpoint)))
    kubelet.publish()
    kubelet.allocations.holdings += [holding("a", ids, resource) for resource, ids in HALVES.items()]
    assert kubelet.allocator.prestart(MEM, HALVES[MEM]) == owner("a")


def test_both_start_while_kubelet_does_not_say_what_it_has():
    kubelet = core_mem()
    given(kubelet, "a", MEM, CORE)
    kubelet.allocations.readable = False
    assert kubelet.allocator.prestart(MEM, HALVES[MEM]) is None


@pytest.mark.parametrize("known", [False, True], ids=["pod unknown", "pod known"])
def test_an_init_container_is_held_to_the_rules_by_the_checkpoint(known):
    """Pod-resources does not list it; kubelet hands its units on to a container that keeps the rules."""
    kubelet = core_mem()
    given(kubelet, "a", MEM, CORE)
    kubelet.allocations.checkpoint = [
        CheckpointEntry("uid-a", "init-0", CORE, HALVES[CORE]),
        *(CheckpointEntry("uid-a", "main", resource, ids) for resource, ids in HALVES.items()),
    ]
    if known:
        kubelet.pods(pod_json("a", {MEM: 4, CORE: 30}, init=({CORE: 30},)))
    refusal = kubelet.refusal(lambda: kubelet.allocator.prestart(CORE, HALVES[CORE]))
    assert refusal.reason is Reason.CORE_MEM_BOTH
    assert "ml/a[init-0]" in refusal.message
    assert kubelet.allocator.prestart(MEM, HALVES[MEM]) == owner("a")


def test_an_init_container_whose_pod_nothing_names_is_named_by_its_uid():
    kubelet = core_mem()
    kubelet.allocator.allocate(CORE, HALVES[CORE])
    kubelet.allocations.checkpoint = [CheckpointEntry("uid-a", "init-0", CORE, HALVES[CORE])]
    refusal = kubelet.refusal(lambda: kubelet.allocator.prestart(CORE, HALVES[CORE]))
    assert str(ContainerRef(PodName("", "uid-a"), "init-0")) in refusal.message


def test_memory_and_compute_on_two_gpus_do_not_start():
    kubelet = core_mem()
    given(kubelet, "a", MEM)
    kubelet.allocations.holdings.append(holding("a", unit_ids(1, CM, *range(30)), CORE))
    assert kubelet.refusal(lambda: kubelet.allocator.prestart(MEM, HALVES[MEM])).reason is Reason.PAIR_APART


def test_a_container_of_core_mem_keeps_to_its_rules_after_a_switch_of_the_mode():
    kubelet = core_mem()
    given(kubelet, "a", MEM, CORE)
    kubelet.node.label("topology").wait(3)
    kubelet.read_allocations()
    assert kubelet.allocator.prestart(MEM, HALVES[MEM]) == owner("a")
    kubelet.allocations.holdings = kubelet.allocations.holdings[1:]
    kubelet.read_allocations()
    assert kubelet.refusal(lambda: kubelet.allocator.prestart(CORE, HALVES[CORE])).reason is Reason.CORE_MEM_BOTH


def late(label: str | None, ids: frozenset[str], **more) -> FakeKubelet:
    """A container that kubelet admitted before the API server showed its pod."""
    kubelet = FakeKubelet(in_force(Mode.SHARE, box(2)))
    kubelet.pods(pod_json("another", {MEM: 4}, labels={GPU_COUNT_LABEL: "2"}))
    kubelet.allocator.allocate(MEM, ids)
    kubelet.allocations.holdings.append(holding("a", ids))
    found = pod_json("a", {MEM: 4}, labels={} if label is None else {GPU_COUNT_LABEL: label})
    found["status"] |= more
    return kubelet.pods(found)


ONE, TWO = unit_ids(0, SHARE, *range(4)), unit_ids(0, SHARE, 0, 1) | unit_ids(1, SHARE, 0, 1)


@pytest.mark.parametrize(
    ("label", "ids", "expected"),
    [
        ("2", ONE, "is to have 2 GPUs, evenly"),
        (None, TWO, "is to have 1 GPU "),
        ("1", TWO, "is to have 1 GPU "),
        ("x", ONE, "is not a number of GPUs"),
        ("3", ONE, "does not divide 4 units"),
    ],
)
def test_a_spread_that_the_pods_label_does_not_ask_for_does_not_start(label, ids, expected):
    kubelet = late(label, ids)
    refusal = kubelet.refusal(lambda: kubelet.allocator.prestart(MEM, ids))
    assert refusal.reason is Reason.GPU_COUNT
    assert expected in refusal.message


@pytest.mark.parametrize(("label", "ids"), [("2", TWO), (None, ONE), ("1", ONE), ("01", ONE)])
def test_a_spread_as_the_label_says_starts(label, ids):
    assert late(label, ids).allocator.prestart(MEM, ids) == owner("a")


def test_a_container_that_has_run_starts_again_though_its_label_was_edited():
    ran = {"containerStatuses": [{"name": "main", "containerID": "containerd://0"}]}
    assert late("2", ONE, **ran).allocator.prestart(MEM, ONE) == owner("a")


def test_the_label_of_a_pod_that_had_the_name_before_is_not_its_own():
    kubelet = late("2", ONE)
    kubelet.allocations.checkpoint = [CheckpointEntry("uid-of-a-new-one", "main", MEM, ONE)]
    assert kubelet.allocator.prestart(MEM, ONE) == owner("a")


def test_a_pod_that_comes_while_another_starts_does_not_keep_that_from_starting(monkeypatch):
    kubelet = FakeKubelet(in_force(Mode.SHARE, box(1), max_pods_per_gpu=1))
    kubelet.pods(pod_json("a", {MEM: 1}, {MEM: 1}))
    kubelet.serve(owner("a"), MEM, 1)
    first, read, later = kubelet.allocations.holdings[0].ids, kubelet.allocations.read, []

    def read_late(timeout_s):
        if not later:
            later.append(kubelet.prefer(MEM, 1))
            kubelet.allocator.allocate(MEM, later[0])
            kubelet.allocations.holdings.append(holding("b", later[0]))
        return read(timeout_s)

    monkeypatch.setattr(kubelet.allocations, "read", read_late)
    assert kubelet.allocator.prestart(MEM, first) == owner("a")
    assert kubelet.refusal(lambda: kubelet.allocator.prestart(MEM, later[0])).reason is Reason.TOO_MANY_PODS


def test_of_too_many_pods_on_a_gpu_the_last_does_not_start_and_the_others_do():
    kubelet = FakeKubelet(in_force(Mode.SHARE, box(1), max_pods_per_gpu=1))
    kubelet.pods(pod_json("a", {MEM: 1}, {MEM: 1}))
    kubelet.serve(owner("a"), MEM, 1)
    ids = kubelet.prefer(MEM, 1)
    kubelet.allocator.allocate(MEM, ids)  # for the second container of the same pod, as far as the agent can tell
    kubelet.allocations.holdings.append(holding("b", ids))
    refusal = kubelet.refusal(lambda: kubelet.allocator.prestart(MEM, ids))
    assert refusal.reason is Reason.TOO_MANY_PODS
    assert "GPU 0 had 1 pods before ml/b[main]" in refusal.message
    assert kubelet.allocator.prestart(MEM, kubelet.allocations.holdings[0].ids) == owner("a")
    # After a restart nothing says which pod was the last.
    assert FakeKubelet(kubelet.node, kubelet.allocations).allocator.prestart(MEM, ids) == owner("b")
    kubelet.end("a")
    assert kubelet.allocator.prestart(MEM, ids) == owner("b")
