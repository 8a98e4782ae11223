"""Conformance checks 46 to 59, 78, 83, 85 to 87 and 91: claims are prepared and unprepared. After kubelet's own test/e2e_node/dra_test.go."""

import contextlib
import ctypes
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuagent.agent.agent import Agent
from standin.scheduler.scheduler import claim_names
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import ISOLATED, PREPARE, UNPREPARE, WHOLE, ClaimNode
from tests.contract.harness import Isolating, box, observe, wait_for

MakeNode = Callable[..., ClaimNode]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""See renameat2(2); Python does not have it."""


def serving(one: ClaimNode, isolation: Isolating | None = None) -> Agent:
    agent = one.run(isolation)
    one.registered()
    one.published()
    return agent


@contextlib.contextmanager
def claims_unreadable(one: ClaimNode) -> Iterator[None]:
    """While it lasts, the agent cannot read a claim, and no preparation succeeds."""
    one.server.deny("get", "resourceclaims")
    yield
    one.server.allow("get", "resourceclaims")


@contextlib.contextmanager
def files_stuck(one: ClaimNode) -> Iterator[None]:
    """While it lasts, no CDI specification can be removed: a folder is in its place."""
    aside = {path: one.root / f"{path.name}.aside" for path in one.cdi.glob("*.json")}
    for path, folder in aside.items():
        folder.mkdir()
        _exchange(path, folder)
    yield
    for path, folder in aside.items():
        _exchange(path, folder)
        folder.rmdir()


def _exchange(path: Path, other: Path) -> None:
    """Each is in the place of the other at once: the agent would take a file that is missing for removed."""
    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if status:
        raise OSError(ctypes.get_errno(), f"cannot exchange {path} and {other}")


def failed(one: ClaimNode, method: str) -> bool:
    return any(call.error for call in one.calls(method))


def test_46_a_pod_created_while_kubelet_is_away_runs(claim_node: MakeNode) -> None:
    """`must process pod created when kubelet is not running`."""
    one = claim_node()
    serving(one)
    one.kubelet.stop()
    one.create("pod", memory="8Gi")
    one.kubelet.start()
    assert one.running("pod").env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"


def test_47_a_pod_stays_pending_while_its_preparation_times_out(claim_node: MakeNode) -> None:
    """`must keep pod in pending state if NodePrepareResources times out`; it runs once the layer works."""
    one = claim_node(call=0.5)
    isolation = Isolating()
    serving(one, isolation)
    isolation.failures = 1_000
    one.create("pod", ISOLATED, memory="8Gi")
    wait_for(lambda: any("DeadlineExceeded" in call.error for call in one.calls(PREPARE)))
    assert one.phase("pod") == "Pending"
    wait_for(lambda: any("Failed to prepare dynamic resources" in text for text in one.texts()))
    one.kubelet.claims.periods.call = PATIENCE_S
    isolation.failures = 0
    one.running("pod")


def test_48_a_pod_runs_when_its_preparation_fails_and_then_succeeds(claim_node: MakeNode) -> None:
    """`must run pod if NodePrepareResources fails and then succeeds`. Kubelet itself would wait for 60 to 90 s."""
    one = claim_node()
    serving(one)
    with claims_unreadable(one):
        one.create("pod", memory="8Gi")
        wait_for(lambda: any("cannot read claim" in text for text in one.texts()))
        assert one.phase("pod") == "Pending"
    one.running("pod")
    assert one.files() == (1, 1)


def test_49_a_pod_ends_when_its_unpreparation_fails_and_then_succeeds(claim_node: MakeNode) -> None:
    """`must run pod if NodeUnprepareResources fails and then succeeds`: the pod succeeds when it did."""
    one = claim_node(back_off=0.2)
    serving(one)
    one.run_pod("pod", memory="8Gi")
    with files_stuck(one):
        one.exit("pod")
        wait_for(lambda: failed(one, UNPREPARE))
        assert one.phase("pod") == "Running"
    wait_for(lambda: one.phase("pod") == "Succeeded")
    assert one.files() == (0, 0)


def test_50_a_preparation_is_tried_again_by_a_new_kubelet(claim_node: MakeNode) -> None:
    """`must retry NodePrepareResources after Kubelet restart`."""
    one = claim_node()
    serving(one)
    with claims_unreadable(one):
        one.create("pod", memory="8Gi")
        wait_for(lambda: failed(one, PREPARE))
        one.kubelet.stop()
    one.kubelet.start()
    one.running("pod")


def test_51_an_unpreparation_is_tried_again_by_a_new_kubelet(claim_node: MakeNode) -> None:
    """`must retry NodeUnprepareResources after Kubelet restart`."""
    one = claim_node(back_off=0.2)
    serving(one)
    one.run_pod("pod", memory="8Gi")
    with files_stuck(one):
        one.exit("pod")
        wait_for(lambda: failed(one, UNPREPARE))
        one.kubelet.stop()
    one.kubelet.start()
    wait_for(lambda: one.phase("pod") == "Succeeded")
    assert one.files() == (0, 0)


def test_52_the_claim_of_a_deleted_pod_is_unprepared(claim_node: MakeNode) -> None:
    """`must call NodeUnprepareResources for deleted pod`: the pod stays until that succeeded."""
    one = claim_node(back_off=0.2)
    serving(one)
    one.run_pod("pod", memory="8Gi")
    with files_stuck(one):
        one.delete("pod")
        wait_for(lambda: failed(one, UNPREPARE))
        assert "deletionTimestamp" in one.pod("pod")["metadata"]
    one.gone("pod")
    assert one.files() == (0, 0)


def test_53_the_claim_of_a_pod_deleted_by_force_is_unprepared_by_a_new_kubelet(claim_node: MakeNode) -> None:
    """`must call NodeUnprepareResources for deleted pod after Kubelet restart`: pod and claim are gone by then."""
    one = claim_node(reconcile=0.2)
    serving(one)
    one.run_pod("pod", memory="8Gi")
    with files_stuck(one):
        one.delete("pod", grace_s=0)
        wait_for(lambda: failed(one, UNPREPARE))
        one.kubelet.restart()
        before = len(one.calls(UNPREPARE))
        wait_for(lambda: len(one.calls(UNPREPARE)) > before)
        assert not one.server.objects.all("resourceclaims")[0]
    wait_for(lambda: one.files() == (0, 0) and not one.checkpoint())


def test_54_the_claim_of_a_pod_deleted_while_kubelet_was_away_is_not_prepared(claim_node: MakeNode) -> None:
    """`must not call NodePrepareResources for deleted pod after Kubelet restart`; what was begun ends with kubelet's call,
    and kubelet undoes what it knows of."""
    one = claim_node(reconcile=0.2)
    isolation = Isolating()
    serving(one, isolation)
    isolation.failures = 1_000
    one.create("pod", ISOLATED, memory="8Gi")
    wait_for(lambda: isolation.verified)
    one.kubelet.stop()
    one.delete("pod", grace_s=0)
    isolation.failures = 0
    before = len(one.calls(PREPARE))
    one.kubelet.start()
    one.registered()
    wait_for(lambda: one.calls(UNPREPARE) and not one.checkpoint())
    assert one.files() == (0, 0)
    assert len(one.calls(PREPARE)) == before


def test_55_the_service_accepts_before_it_is_registered(claim_node: MakeNode) -> None:
    """`must be functional when plugin starts to listen on a service socket after registration`: the agent never makes
    kubelet wait for that, so a pod that is there already runs at once."""
    one = claim_node()
    agent = serving(one)
    one.stop(agent)
    one.registered(0)
    one.create("pod", memory="8Gi")
    wait_for(lambda: any("is not registered" in text for text in one.texts()))
    one.run()
    one.registered()
    one.running("pod")
    assert not failed(one, PREPARE)


def test_56_a_pod_that_ran_without_the_agent_is_unprepared(claim_node: MakeNode) -> None:
    """`must be functional after service reconnect`: the slices go meanwhile, and the pod does not notice."""
    one = claim_node(back_off=0.2)
    agent = serving(one)
    running = one.run_pod("pod", memory="8Gi")
    one.stop(agent)
    wait_for(lambda: one.slice() is None)
    assert one.running("pod") is running
    one.delete("pod")
    observe(0.5)
    assert one.phase("pod") == "Running"
    one.run()
    one.gone("pod")
    assert one.files() == (0, 0)
    assert len(one.calls(PREPARE)) == 1


def test_57_two_pods_with_one_claim_are_prepared_at_once(claim_node: MakeNode) -> None:
    """Kubelet has no lock for a claim; both get the same, and the last one to go unprepares it."""
    one = claim_node()
    serving(one)
    one.server.objects.create(
        "resourceclaims", "default", {"metadata": {"name": "both"}, "spec": one.spec(memory="8Gi")}
    )
    one.create("first", claim="both")
    one.create("second", claim="both")
    assert one.running("first").env == one.running("second").env
    one.delete("first")
    one.gone("first")
    assert one.files() == (1, 1)
    assert not one.calls(UNPREPARE)
    one.delete("second")
    one.gone("second")
    assert one.files() == (0, 0)


def test_58_after_a_reboot_every_pod_starts_again(claim_node: MakeNode) -> None:
    """No container is left, and the folder of CDI specifications is empty: a claim that was prepared is again."""
    one = claim_node()
    serving(one)
    before = [one.run_pod(f"pod-{n}", memory="8Gi").env for n in range(5)]
    one.kubelet.stop()
    one.stop(one.agents[0])
    one.kubelet.claims.lose_containers()
    one.kubelet.start()
    wait_for(lambda: sum("is not registered" in text for text in one.texts()) == 5)
    serving(one)
    wait_for(lambda: one.files() == (5, 5) and len(one.calls(PREPARE)) == 10)
    assert [one.running(f"pod-{n}").env for n in range(5)] == before
    assert not any("CDI" in text for text in one.texts())


def test_59_a_container_has_two_shares_of_one_gpu_as_one(claim_node: MakeNode) -> None:
    """`same device with two ShareIDs`: kubelet keeps the shares apart, and the container has the sum."""
    one = claim_node()
    serving(one)
    spec = one.spec(memory="8Gi")
    spec["devices"]["requests"].append({**spec["devices"]["requests"][0], "name": "other"})
    one.server.objects.create("resourceclaims", "default", {"metadata": {"name": "twice"}, "spec": spec})
    one.create("pod", claim="twice")
    env = one.running("pod").env
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "16"
    assert "," not in env["NVIDIA_VISIBLE_DEVICES"]
    shares = {
        device["ShareID"]
        for claim in one.checkpoint()
        for device in claim["DriverState"]["gpu.gpuagent.io"]["Devices"] or ()
    }
    assert len(shares) == 2
    one.delete("pod")
    one.gone("pod")
    assert one.files() == (0, 0)


def test_78_many_pods_that_wait_for_isolation_delay_no_other_pod(claim_node: MakeNode) -> None:
    """Each waits inside a call of its own: 40 pods of one claim leave room for the calls of other pods."""
    one = claim_node()
    isolation = Isolating()
    serving(one, isolation)
    one.run_pod("ends", memory="8Gi")
    isolation.failures = 1_000_000
    body = {"metadata": {"name": "many"}, "spec": one.spec(ISOLATED, memory="8Gi")}
    one.server.objects.create("resourceclaims", "default", body)
    for n in range(40):
        one.create(f"waits-{n}", claim="many")
    uids = [one.pod(f"waits-{n}")["metadata"]["uid"] for n in range(40)]
    wait_for(lambda: all(uid in json.dumps(one.checkpoint()) for uid in uids))
    one.delete("ends")
    one.gone("ends")
    isolation.failures = 0


def test_83_a_container_gets_all_of_its_claims_or_its_pod_is_refused(claim_node: MakeNode) -> None:
    """`must map configs and devices to the right containers`; what a runtime cannot express is refused."""
    one = claim_node()
    serving(one)
    for name, memory in (("small", "4Gi"), ("large", "8Gi")):
        body = {"metadata": {"name": name}, "spec": one.spec(memory=memory)}
        one.server.objects.create("resourceclaims", "default", body)
    _create(one, "pod", [["small", "large"]])
    assert one.running("pod").env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "12"
    one.delete("pod", grace_s=0)
    # Until kubelet has forgotten the claims as well, it takes them for prepared and does not call the driver.
    wait_for(lambda: one.files() == (0, 0) and not one.checkpoint())
    _create(one, "other", [["small", "large"], ["small"]])
    wait_for(lambda: any("would mix up their variables" in text for text in one.texts()), what=one.texts)
    assert one.phase("other") == "Pending"


def _create(one: ClaimNode, name: str, containers: list[list[str]]) -> None:
    """A pod whose containers use these claims."""
    named = [{"name": claim, "resourceClaimName": claim} for claim in ("small", "large")]
    made = [
        {
            "name": f"main-{n}" if n else "main",
            "image": "work",
            "resources": {"claims": [{"name": claim} for claim in claims]},
        }
        for n, claims in enumerate(containers)
    ]
    body = {
        "metadata": {"name": name},
        "spec": {"containers": made, "resourceClaims": named},
        "status": {"phase": "Pending"},
    }
    one.server.objects.create("pods", "default", body)


def allocated(one: ClaimNode, pod: str) -> bool:
    if not claim_names(one.pod(pod)):  # the claim is not made yet
        return False
    return bool((one.claim_of(pod).get("status") or {}).get("allocation"))


def test_85_a_gpu_is_not_given_again_while_a_container_of_a_pod_deleted_by_force_ends(claim_node: MakeNode) -> None:
    """The API server and the scheduler have forgotten that pod, and kubelet has not unprepared its claim yet."""
    one = claim_node(gpus=box(1), reconcile=0.2, back_off=0.2)
    serving(one)
    one.run_pod("first", WHOLE)
    with files_stuck(one):
        one.delete("first", grace_s=0)
        wait_for(lambda: failed(one, UNPREPARE))
        one.create("next", WHOLE)
        wait_for(lambda: allocated(one, "next"))
        observe(1.0)
        assert one.phase("next") == "Pending"
        assert not one.kubelet.claims.container(one.pod("next")["metadata"]["uid"], "main")
    one.running("next")
    wait_for(lambda: one.files() == (1, 1))


def test_86_a_claim_that_a_new_kubelet_has_forgotten_does_not_keep_its_gpu(claim_node: MakeNode) -> None:
    """Kubelet's state was removed, as by `kubeadm reset`, and the pod is gone."""
    one = claim_node(gpus=box(1))
    serving(one)
    one.run_pod("first", WHOLE)
    one.kubelet.stop()
    one.delete("first", grace_s=0)
    one.forget_claims()
    one.kubelet.start()
    one.registered()
    one.run_pod("next", WHOLE)
    wait_for(lambda: one.files() == (1, 1))


def test_87_a_claim_for_bytes_is_refused_with_what_was_meant(claim_node: MakeNode) -> None:
    """The scheduler rounds `memory: 8` up to a unit."""
    one = claim_node()
    serving(one)
    one.create("pod", memory="8")
    wait_for(lambda: any("did you mean 8Gi?" in text for text in one.texts()), what=one.texts)
    assert one.phase("pod") == "Pending"
    assert one.files() == (0, 0)


def pod_with_claim(one: ClaimNode, namespace: str) -> str:
    """Create claim `train` for a whole GPU and pod `train` that uses it; the UID of the pod."""
    body = {"metadata": {"name": "train"}, "spec": one.spec(WHOLE)}
    one.server.objects.create("resourceclaims", namespace, body)
    spec = {
        "containers": [{"name": "main", "image": "work", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}],
    }
    body = {"metadata": {"name": "train"}, "spec": spec, "status": {"phase": "Pending"}}
    return str(one.server.objects.create("pods", namespace, body)["metadata"]["uid"])


def test_91_claims_and_pods_of_one_name_in_two_namespaces_have_nothing_in_common(claim_node: MakeNode) -> None:
    """The end of one frees its own GPU, and only that."""
    one = claim_node(gpus=box(2))
    agent = serving(one)
    uids = {namespace: pod_with_claim(one, namespace) for namespace in ("blue", "red")}
    wait_for(lambda: all(one.kubelet.claims.container(uid, "main") for uid in uids.values()), what=one.texts)
    gpus = {}
    for namespace, uid in uids.items():
        container = one.kubelet.claims.container(uid, "main")
        assert container
        gpus[namespace] = container.env["NVIDIA_VISIBLE_DEVICES"]
    assert gpus["blue"] != gpus["red"]
    one.server.delete_pod("train", namespace="blue", grace_s=0)
    wait_for(lambda: agent.state.claims.held == {gpus["red"]}, what="the GPU of the deleted pod to be free")
    assert one.files() == (1, 1)
    (claim,) = agent.state.claims.prepared.values()
    assert str(claim) == "red/train"
    one.server.objects.delete(("resourceclaims", "blue", "train"))
    again = pod_with_claim(one, "blue")
    wait_for(lambda: one.kubelet.claims.container(again, "main"), what=one.texts)
    wait_for(lambda: agent.state.claims.held == {gpus["blue"], gpus["red"]}, what="both GPUs to be held")
