"""What containers use of a claim is known from their pods alone, and Prepare never guesses it."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.isolation.mps.share import share
from gpuagent.preparer import waits
from standin.waiting import PATIENCE_S
from tests.unit.domain.builders import pod_json
from tests.unit.domain.dra.test_prepare import result
from tests.unit.preparer.test_preparer import GPUS, OTHER_UID, UID, Driver, Prepared

OF_LIMITS = {"resource.kubernetes.io/extended-resource-claim": "true"}
SEVERAL = "MPS forgets every cap"
MIXED_UP = "would mix up their variables"


class Mps(Driver):
    """It refuses a container with limits on several GPUs, as MPS has to."""

    def prepare(self, grant):
        return share(grant, unit=MemoryUnit(), pipe_dir=Path("/mps"), shm=None)


@pytest.fixture
def mps(tmp_path, monkeypatch):
    """A preparer that knows no pods yet."""
    monkeypatch.setattr(waits, "RETRY_S", 0.01)
    monkeypatch.setattr(waits, "SEEN_S", 0.01)
    one = Prepared(tmp_path, pods=None)
    one.driver = Mps()
    one.begin()
    return one


def add(one, *results, name="c", uid=UID, pods=("p",), of_limits=False, device_class="gpu-isolated.gpuagent.io"):
    """A claim that is reserved for these pods."""
    one.add(*results, name=name, uid=uid, device_class=device_class)
    made = one.claims["default", name]
    made["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    if of_limits:
        made["metadata"]["annotations"] = OF_LIMITS


def container(name, *claims):
    return {"name": name, "resources": {"claims": [{"name": claim} for claim in claims]}}


def pod(*containers, name="p", claims=("c", "d"), init=(), mappings=()):
    """Each claim has its own name in the pod. `mappings`: the requests of claim c that containers use by limits."""
    made = pod_json(name, {})
    made["metadata"]["namespace"] = "default"
    made["spec"]["containers"] = list(containers)
    made["spec"]["initContainers"] = list(init)
    made["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    if mappings:
        entries = [{"containerName": user, "resourceName": "x/y", "requestName": request} for user, request in mappings]
        made["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c", "requestMappings": entries}
    return made


def sees(one, *pods):
    one.node.pods(*pods)
    one.preparer.publish(one.node.state)


def prepare(one, name="c", uid=UID, seconds=0.05):
    return one.preparer.prepare(uid, "default", name, until=time.monotonic() + seconds)


def prepare_d(one):
    return prepare(one, "d", OTHER_UID)


# Which GPUs of a claim a container gets.


@pytest.mark.parametrize("of_limits", [False, True])
def test_a_claim_that_a_container_names_is_never_split_whatever_its_annotations_say(mps, of_limits):
    """Any author of a claim can write the annotation, and kubelet gives the container both GPUs."""
    sees(mps, pod(container("main", "c"), claims=("c",)))
    add(mps, result(0, request="a"), result(1, request="b"), of_limits=of_limits)
    with pytest.raises(Refusal, match=SEVERAL):
        prepare(mps)


@pytest.mark.parametrize(
    ("requests", "words"),
    [([("main", "a"), ("main", "b")], SEVERAL), ([("main", "a"), ("main", "b"), ("side", "b")], MIXED_UP)],
)
def test_two_requests_of_one_container_are_not_split(mps, requests, words):
    """It names two resources in its limits, and the scheduler makes a request for each."""
    sees(mps, pod(container("main"), container("side"), claims=(), mappings=requests))
    add(mps, result(0, request="a"), result(1, request="b"), of_limits=True)
    with pytest.raises(Refusal, match=words):
        prepare(mps)


def test_a_claim_of_the_limits_of_two_containers_is_split(mps):
    sees(mps, pod(container("main"), container("side"), claims=(), mappings=[("main", "a"), ("side", "b")]))
    add(mps, result(0, request="a"), result(1, request="b"), of_limits=True)
    prepare(mps)
    limits = {device: edits["env"] for device, edits in mps.edits().items()}
    assert limits.keys() == {device_name(GPUS[0]), device_name(GPUS[1])}, "MPS limits no container that uses both"


def test_a_second_pod_that_names_the_claim_of_limits_gets_all_of_it(mps):
    add(mps, result(0, request="a"), result(1, request="b"), of_limits=True, pods=("p", "q"))
    mine = pod(container("main"), container("side"), claims=(), mappings=[("main", "a"), ("side", "b")])
    sees(mps, mine, pod(container("main", "c"), name="q", claims=("c",)))
    with pytest.raises(Refusal, match=SEVERAL):
        prepare(mps)


def test_the_status_of_a_pod_without_a_reservation_splits_no_claim(mps):
    mine = pod(container("main", "c"), claims=("c",))
    stranger = pod(container("main"), name="q", claims=(), mappings=[("main", "a"), ("side", "b")])
    sees(mps, mine, stranger)
    add(mps, result(0, request="a"), result(1, request="b"), of_limits=True)
    with pytest.raises(Refusal, match=SEVERAL):
        prepare(mps)


def test_whole_gpus_of_limits_wait_for_the_pod_that_says_which_container_gets_which(mps):
    whole = [result(n, "16Gi", request=name) for n, name in enumerate("ab")]
    add(mps, *whole, of_limits=True, device_class="gpu.gpuagent.io")
    with pytest.raises(Refusal) as caught:
        prepare(mps)
    assert caught.value.reason is Reason.NOT_READY
    sees(mps, pod(container("main"), container("side"), claims=(), mappings=[("main", "a"), ("side", "b")]))
    prepare(mps)
    assert len(mps.edits()) == 3, "one for all of the claim, too"


# Containers with two claims.


def many(count):
    return [f"e{number}" for number in range(count)]


HIDING = {
    "init containers": lambda: pod(
        container("main", "c", "d"), init=[container(name, "c") for name in many(1000)], claims=("c", "d")
    ),
    "claims that nobody uses": lambda: pod(container("main", "c", "d"), claims=(*many(1000), "c", "d")),
    "claims of other containers": lambda: pod(
        *[container(name, name) for name in many(1000)], container("main", "c", "d"), claims=(*many(1000), "c", "d")
    ),
    "the claims of another container": lambda: pod(
        container("first", *many(40)), container("main", "c", "d"), claims=(*many(40), "c", "d")
    ),
}


@pytest.mark.parametrize("hiding", HIDING)
def test_a_container_of_two_claims_cannot_hide(mps, hiding):
    sees(mps, HIDING[hiding]())
    add(mps, result(0))
    add(mps, result(1), name="d", uid=OTHER_UID)
    with pytest.raises(Refusal, match=f"{SEVERAL}|too many containers"):
        prepare_both(mps)


def prepare_both(one):
    prepare(one)
    prepare_d(one)


def test_a_claim_that_a_pod_names_twice_is_one_claim(mps):
    """The container uses it by the first name, and nobody uses it by the second one."""
    made = pod(container("main", "c", "d"))
    made["spec"]["resourceClaims"].append({"name": "again", "resourceClaimName": "c"})
    sees(mps, made)
    add(mps, result(0))
    add(mps, result(1), name="d", uid=OTHER_UID)
    prepare(mps)
    with pytest.raises(Refusal, match=SEVERAL):
        prepare_d(mps)


def test_a_container_with_a_claim_and_gpus_in_its_limits_has_two_claims(mps):
    sees(mps, pod(container("main", "d"), claims=("d",), mappings=[("main", "a")]))
    add(mps, result(0, request="a"), of_limits=True)
    add(mps, result(1), name="d", uid=OTHER_UID)
    prepare(mps)
    with pytest.raises(Refusal, match=SEVERAL):
        prepare_d(mps)


TOO_MANY = {
    "claims": lambda: pod(
        *[container(name, "e0", "e1") for name in many(1000)],
        container("main", "c", "d"),
        claims=("e0", "e1", "c", "d"),
    ),
    "requests": lambda: pod(
        container("main", "c", "d"), claims=("c", "d"), mappings=[(name, "a") for name in many(1000)]
    ),
}


@pytest.mark.parametrize("kind", TOO_MANY)
def test_a_pod_that_is_too_large_to_be_read_gets_no_isolated_share(mps, kind):
    sees(mps, TOO_MANY[kind]())
    add(mps, result(0))
    with pytest.raises(Refusal, match="pod default/p has too many containers that use claims") as caught:
        prepare(mps)
    assert caught.value.reason is Reason.MIXED_RESOURCES
    add(mps, result(0, "16Gi"), device_class="gpu.gpuagent.io")
    prepare(mps)


@pytest.mark.parametrize("made", [*HIDING.values(), *TOO_MANY.values()])
def test_a_pod_of_any_size_needs_little_memory(made):
    kept = parse_pod(made())
    uses = [container for containers in kept.claims.values() for container in containers]
    assert len(uses) <= 256
    assert len(kept.claims) <= 32 + 256
    assert len(kept.claim_requests) <= 256


# Until the pods are known.


def never_seen(_):
    """The list of pods is late."""


def without_the_pod(one):
    """The list has not shown the claim's pod yet."""
    sees(one, pod(container("main", "x"), name="other", claims=("x",)))


def with_the_ended_pod(one):
    """The claim's earlier pod has ended, and the next one was not seen."""
    ended = pod(container("main", "c"))
    ended["status"]["phase"] = "Succeeded"
    sees(one, ended)


@pytest.mark.parametrize("unseen", [never_seen, without_the_pod, with_the_ended_pod])
def test_an_isolated_share_is_refused_while_its_pod_is_not_known(mps, unseen):
    unseen(mps)
    add(mps, result(0))
    with pytest.raises(Refusal, match="kubelet tries again") as caught:
        prepare(mps)
    assert caught.value.reason is Reason.NOT_READY
    assert mps.files() == [0, 0]
    sees(mps, pod(container("main", "c")))
    prepare(mps)


def test_an_isolated_share_waits_for_the_list_of_pods_and_not_for_a_while(mps):
    sees_soon = threading.Event()
    add(mps, result(0))
    add(mps, result(1), name="d", uid=OTHER_UID)
    answers = []

    def call():
        sees_soon.set()
        answers.append(prepare(mps, seconds=PATIENCE_S))

    thread = threading.Thread(target=call)
    thread.start()
    assert sees_soon.wait(PATIENCE_S)
    thread.join(0.1)
    assert not answers, "the pods are not known"
    sees(mps, pod(container("main", "c", "d")))
    thread.join(PATIENCE_S)
    assert len(answers) == 1
    with pytest.raises(Refusal, match=SEVERAL):
        prepare_d(mps)


UNISOLATED = [("gpu.gpuagent.io", result(1, "16Gi")), ("gpu.gpuagent.io", result(1, adminAccess=True))]


@pytest.mark.parametrize(("device_class", "given"), UNISOLATED)
@pytest.mark.parametrize("unseen", [never_seen, without_the_pod])
def test_whole_gpus_and_monitors_need_no_pod(mps, unseen, device_class, given):
    unseen(mps)
    add(mps, given, device_class=device_class)
    prepare(mps, seconds=PATIENCE_S)
    assert mps.files() == [1, 1]


def test_a_share_that_is_not_isolated_needs_no_pod(mps):
    mps.node.send(ev.LayerSeen(replace(mps.layer, problem="the daemon is dead"), 0.0))
    mps.preparer.publish(mps.node.state)
    add(mps, result(1), device_class="gpu-share.gpuagent.io")
    assert prepare(mps, seconds=PATIENCE_S)[0].layer == "none"


def test_a_whole_gpu_may_not_come_unseen_beside_an_isolated_share(mps):
    """The agent started again after the share was prepared, and its list of pods is late."""
    sees(mps, pod(container("main", "c", "d")))
    add(mps, result(0))
    prepare(mps)
    again = Prepared(mps.directory, pods=None)
    add(again, result(1, "16Gi"), name="d", uid=OTHER_UID, device_class="gpu.gpuagent.io")
    with pytest.raises(Refusal) as caught:
        prepare_d(again)
    assert caught.value.reason is Reason.NOT_READY
    sees(again, pod(container("main", "c", "d")))
    with pytest.raises(Refusal, match="takes one size for all GPUs of a container"):
        prepare_d(again)


def test_pods_that_the_agent_read_one_by_one_are_enough(mps):
    """Before the list has come."""
    add(mps, result(0))
    mps.node.pods(pod(container("main", "c")))
    pods = replace(mps.node.state.pods, known=False)
    mps.preparer.publish(replace(mps.node.state, pods=pods))
    prepare(mps)
