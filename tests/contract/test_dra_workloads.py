"""Conformance checks 92 to 105: pods with claims in the shapes of Kubernetes' own test/e2e/dra."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gpuagent.domain.node_state import claims
from gpuagent.kube.write import prepare_again
from gpuagent.kubelet.dra import servicer
from standin.kubelet.pods import Granted
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import ISOLATED, PREPARE, SHARE, WHOLE, ClaimNode
from tests.contract.harness import Isolating, box, observe, wait_for
from tests.contract.test_dra_claims import failed, files_stuck, serving
from tests.contract.test_fence import save

MakeNode = Callable[..., ClaimNode]
Json = dict[str, Any]


def create_claim(one: ClaimNode, name: str, device_class: str = WHOLE, requests: Sequence[str] = ("gpu",)) -> None:
    """A claim with these requests of the class, for 8 GiB if it is one of shares."""
    exactly: Json = {"deviceClassName": device_class}
    if device_class == SHARE:
        exactly["capacity"] = {"requests": {"memory": "8Gi"}}
    spec = {"devices": {"requests": [{"name": request, "exactly": exactly} for request in requests]}}
    one.server.objects.create("resourceclaims", "default", {"metadata": {"name": name}, "spec": spec})


def create_pod(one: ClaimNode, name: str, claims: Sequence[str], containers: Mapping[str, Sequence[str]]) -> str:
    """A pod with these claims, whose containers name some of them, or requests as `claim/request`; its UID."""
    listed = [
        {"name": container, "image": "work", "resources": {"claims": [use(claim) for claim in named]}}
        for container, named in containers.items()
    ]
    spec = {
        "containers": listed,
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
    }
    body = {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}
    return str(one.server.objects.create("pods", "default", body)["metadata"]["uid"])


def use(claim: str) -> Json:
    name, _, request = claim.partition("/")
    return {"name": name} | ({"request": request} if request else {})


def of_container(one: ClaimNode, uid: str, name: str) -> Granted:
    wait_for(lambda: one.kubelet.claims.container(uid, name), what=f"{name} does not run: {one.texts()}")
    granted = one.kubelet.claims.container(uid, name)
    assert granted
    return granted


def gpus(granted: Granted) -> set[str]:
    return set(filter(None, granted.env.get("NVIDIA_VISIBLE_DEVICES", "").split(",")))


def gpus_of(one: ClaimNode, claim: str, request: str) -> set[str]:
    """UUIDs of the GPUs of a request."""
    devices = {device["name"]: device["attributes"]["uuid"]["string"] for device in one.published()["spec"]["devices"]}
    allocation = one.server.objects.get(("resourceclaims", "default", claim))["status"]["allocation"]
    results = allocation["devices"]["results"]
    return {devices[result["device"]] for result in results if result["request"] == request}


def is_unschedulable(one: ClaimNode, name: str) -> bool:
    conditions = one.pod(name)["status"].get("conditions") or ()
    return any(condition.get("reason") == "Unschedulable" for condition in conditions)


def test_92_a_claim_that_no_container_names_is_prepared(claim_node: MakeNode) -> None:
    """`must call NodePrepareResources even if not used by any container`: its container gets no GPU."""
    one = claim_node()
    serving(one)
    create_claim(one, "unused", SHARE)
    uid = create_pod(one, "pod", ["unused"], {"main": []})
    assert not gpus(of_container(one, uid, "main"))
    assert one.files() == (1, 1)
    one.delete("pod")
    one.gone("pod")
    assert one.files() == (0, 0)


def test_93_two_containers_get_their_requests_of_three_claims(claim_node: MakeNode) -> None:
    """`must map configs and devices to the right containers`, with its three claims of three requests."""
    one = claim_node(gpus=box(9))
    serving(one)
    requests = ("req0", "req1", "req2")
    for claim in ("all", "container0", "container1"):
        create_claim(one, claim, requests=requests)
    containers = {"container0": ["all", "container0"], "container1": ["all", "container1/req1"]}
    uid = create_pod(one, "pod", ["all", "container0", "container1"], containers)
    first, second = (of_container(one, uid, name) for name in containers)
    of_all = set[str]().union(*(gpus_of(one, "all", request) for request in requests))
    of_first = set[str]().union(*(gpus_of(one, "container0", request) for request in requests))
    assert len(of_all | of_first) == 6
    assert gpus(first) == of_all | of_first
    assert gpus(second) == of_all | gpus_of(one, "container1", "req1")
    assert len(gpus(second)) == 4


def test_94_a_pod_of_the_same_name_waits_for_the_end_of_one_deleted_by_force(claim_node: MakeNode) -> None:
    """`blocks new pod after force-delete`: pod and claim are made again under their names before the former are done."""
    one = claim_node(back_off=0.2, resync=0.2)
    serving(one)
    create_claim(one, "train")
    create_pod(one, "train", ["train"], {"main": ["train"]})
    one.running("train")
    with files_stuck(one):
        one.delete("train", grace_s=0)
        one.server.objects.delete(("resourceclaims", "default", "train"))
        wait_for(lambda: failed(one, "NodeUnprepareResources"))
        create_claim(one, "train")
        uid = create_pod(one, "train", ["train"], {"main": ["train"]})
        wait_for(lambda: any("different UID" in text and "still exists" in text for text in one.texts()))
        assert one.kubelet.claims.container(uid, "main") is None
    of_container(one, uid, "main")
    (claim,) = one.checkpoint()
    assert claim["ClaimUID"] == one.claim_of("train")["metadata"]["uid"]
    assert one.files() == (1, 1)


def test_95_a_pod_that_came_before_the_agent_runs_after_it(claim_node: MakeNode) -> None:
    """`runs pod after driver starts`."""
    one = claim_node()
    one.create("pod", memory="8Gi")
    wait_for(lambda: is_unschedulable(one, "pod"))
    one.run()
    one.running("pod")
    assert not failed(one, PREPARE)


def test_96_an_agent_that_was_to_replace_another_ends_and_the_former_serves_on(claim_node: MakeNode) -> None:
    """`failed update`: no slice goes, and no call fails."""
    one = claim_node()
    former = serving(one)
    before = one.published()
    of_former = one.registered()
    newer = one.run()
    one.registered(2)
    wait_for(lambda: former.state.claims.superseded)
    one.stop(newer)
    assert one.registered() == of_former
    one.run_pod("pod", memory="8Gi")
    one.delete("pod")
    one.gone("pod")
    assert one.published()["metadata"]["uid"] == before["metadata"]["uid"]
    assert not any(call.error for call in one.kubelet.claims.calls)


def test_97_five_pods_use_one_gpu_one_after_the_other(claim_node: MakeNode) -> None:
    """`supports reusing resources`, `must deallocate after use`."""
    one = claim_node(gpus=box(1))
    serving(one)
    waiting = {f"pod-{number}" for number in range(5)}
    for name in waiting:
        one.create(name, WHOLE)
    while waiting:
        wait_for(lambda: any(one.phase(name) == "Running" for name in waiting), what=f"{one.texts()}")
        (running,) = (name for name in waiting if one.phase(name) == "Running")
        one.delete(running)
        one.gone(running)
        waiting.remove(running)
    assert one.files() == (0, 0)


def test_98_a_pod_with_a_claim_that_another_pod_has_and_a_new_one(claim_node: MakeNode) -> None:
    """`requests an already allocated and a new claim for a pod`: in two containers. In one, the pod is refused, because
    kubelet gives both pods the same device of the common claim, and a runtime sets each variable once."""
    one = claim_node(gpus=box(2))
    serving(one)
    for claim in ("first", "second"):
        create_claim(one, claim)
    alone = create_pod(one, "alone", ["first"], {"main": ["first"]})
    of_first = gpus(of_container(one, alone, "main"))
    apart = create_pod(one, "apart", ["first", "second"], {"main": ["first"], "side": ["second"]})
    assert gpus(of_container(one, apart, "main")) == of_first
    assert not gpus(of_container(one, apart, "side")) & of_first
    one.delete("apart")
    one.gone("apart")
    together = create_pod(one, "together", ["first", "second"], {"main": ["first", "second"]})
    mixed = "would mix up their variables"
    wait_for(lambda: any(mixed in text for text in one.texts()), what=f"{one.texts()}")
    assert one.kubelet.claims.container(together, "main") is None


def test_99_a_pod_whose_claim_is_not_allocated_does_not_run(claim_node: MakeNode) -> None:
    """`must not run a pod if a claim is not ready`: the pod was bound past the scheduler. The agent is not asked."""
    one = claim_node()
    serving(one)
    one.server.objects.create("resourceclaims", "default", {"metadata": {"name": "early"}, "spec": one.spec("unknown")})
    one.create("pod", claim="early")
    one.server.patch_pod("pod", {"spec": {"nodeName": "node-1"}})
    wait_for(lambda: any("FailedPrepareDynamicResources" in text for text in one.texts()), what=f"{one.texts()}")
    assert one.phase("pod") == "Pending"
    assert not one.calls(PREPARE)
    assert one.files() == (0, 0)


def test_100_a_pod_that_kubelet_could_not_unprepare_ends_soon_after_the_agent_is_back(claim_node: MakeNode) -> None:
    """Kubelet itself would try again after 10 to 15 s, here after ten minutes."""
    one = claim_node(back_off=600)
    agent = serving(one)
    one.run_pod("pod", memory="8Gi")
    one.stop(agent)
    one.registered(0)
    one.delete("pod", grace_s=None)
    observe(0.5)
    assert one.phase("pod") == "Running"
    one.run()
    one.gone("pod")
    assert one.files() == (0, 0)


def test_101_a_pod_whose_claim_was_never_prepared_ends_in_another_mode_too(claim_node: MakeNode) -> None:
    """Kubelet unprepares also what it began to prepare. Without the driver, it could never end the pod."""
    one = claim_node(back_off=0.2, resync=0.2)
    isolation = Isolating()
    agent = serving(one, isolation)
    isolation.failures = 1_000_000
    one.create("pod", ISOLATED, memory="8Gi")
    wait_for(lambda: isolation.verified)
    one.label("share")
    one.caught_up(agent)
    one.delete("pod")
    one.gone("pod")
    assert one.files() == (0, 0)
    one.registered(0)


def test_102_a_pod_whose_claim_was_never_prepared_ends_after_a_restart_in_another_mode_too(
    claim_node: MakeNode,
) -> None:
    """The agent has no record of the claim, and kubelet has begun to prepare it."""
    one = claim_node(back_off=0.2, resync=0.2)
    isolation = Isolating()
    agent = serving(one, isolation)
    isolation.failures = 1_000_000
    one.create("pod", ISOLATED, memory="8Gi")
    wait_for(lambda: isolation.verified)
    one.label("share")
    one.caught_up(agent)
    one.stop(agent)
    one.registered(0)
    one.run()
    one.registered()
    one.delete("pod")
    one.gone("pod")
    one.registered(0)


def test_103_a_pod_that_was_bound_before_the_node_left_the_mode_says_so_and_runs_when_the_node_is_back(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is offered to other pods, and none has it. Kubelet itself would try again after ten minutes."""
    monkeypatch.setattr(claims, "WITHDRAWN_S", 0.5)
    monkeypatch.setattr(prepare_again, "SLOW_S", 600.0)
    one = claim_node(resync=600)
    isolation = Isolating()
    agent = serving(one, isolation)
    isolation.failures = 1_000_000
    one.create("pod", ISOLATED, memory="8Gi")
    wait_for(lambda: isolation.verified)
    one.label("share")
    one.caught_up(agent)
    left = (
        "The node has left mode dra for mode share, which gives its GPUs to other pods: delete every pod of the claim"
    )
    wait_for(lambda: any(left in text for text in one.texts()), what=lambda: f"{one.texts()}")
    isolation.failures = 0
    one.label("dra")
    one.running("pod")


def test_104_a_pod_that_is_deleted_while_its_preparation_waits_ends_at_once(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet ends no pod before it has the answer. Without the deletion, it would come after this test has failed."""
    monkeypatch.setattr(servicer, "WAIT_S", 10 * PATIENCE_S)
    one = claim_node(back_off=0.2, call=10 * PATIENCE_S)
    isolation = Isolating()
    serving(one, isolation)
    isolation.failures = 1_000_000
    one.create("pod", ISOLATED, memory="8Gi")
    wait_for(lambda: isolation.verified)
    one.delete("pod")
    one.gone("pod")
    assert one.files() == (0, 0)


def test_105_a_pod_runs_as_soon_as_the_fence_of_its_gpu_is_lifted(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim tolerates the fence, which helps administrators only. Kubelet itself would try again in ten minutes."""
    monkeypatch.setattr(prepare_again, "QUICK", 1)
    monkeypatch.setattr(prepare_again, "SLOW_S", 600.0)
    one = claim_node(gpus=box(1), resync=600)
    serving(one)
    save(one, index=["0"])
    wait_for(one.tainted)
    spec = one.spec(WHOLE)
    toleration = {"key": "gpu.gpuagent.io/fenced", "operator": "Exists"}
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = [toleration]
    one.server.objects.create("resourceclaims", "default", {"metadata": {"name": "fenced"}, "spec": spec})
    one.create("pod", claim="fenced")
    wait_for(lambda: len(one.calls(PREPARE)) > 1, what=lambda: f"{one.texts()}")
    assert any("is fenced by file" in text for text in one.texts())
    one.fence_file.unlink()
    one.running("pod")
