"""On the real kubelet, each container gets the requests and the claims that it names."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.chart_classes import chart_classes
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, of, tainted, wait_files, wait_published
from tests.e2e.agent.podannotations import event
from tests.e2e.amounts import count
from tests.e2e.cluster import Cluster, pod_manifest

Json = dict[str, Any]
SHARE = "gpu-share.gpuagent.io"
WHOLE = "gpu.gpuagent.io"
SEVERAL_S = count(300, 120)
"""A pod with several claims may wait for minutes on Kubernetes 1.36 (kubernetes/kubernetes#138407)."""


@pytest.fixture
def node(make_node: Callable[..., Node], cluster: Cluster, no_claims: None, of_administrators: None) -> Iterator[Node]:
    """With `aliyun.com/gpu` as the extended resource of the class for whole GPUs, and a namespace for monitors."""
    with chart_classes(cluster, extendedResource="aliyun.com/gpu"):
        made = make_node(mode="dra")
        made.wait_amounts()
        wait_published(made)
        yield made


@pytest.fixture
def make_claim(cluster: Cluster) -> Iterator[Callable[..., None]]:
    """Creates claims, and removes them after the test."""
    made: list[Json] = []

    def make(name: str, **requests: Json) -> None:
        listed = [{"name": request, "exactly": exactly} for request, exactly in requests.items()]
        manifest = of("ResourceClaim", name, {"devices": {"requests": listed}}, "default")
        cluster.apply(manifest)
        made.append(manifest)

    yield make
    for manifest in made:
        cluster.api("DELETE", cluster.client.path_of(manifest))


def share(memory: str) -> Json:
    return {"deviceClassName": SHARE, "capacity": {"requests": {"memory": memory}}}


def whole(**more: Any) -> Json:
    return {"deviceClassName": WHOLE, **more}


def pod(name: str, **containers: list[str]) -> Json:
    """A pod whose containers name these claims, or requests as `claim/request`."""
    manifest = pod_manifest(name, {})
    (first,) = manifest["spec"]["containers"]
    named = {claim.partition("/")[0] for claims in containers.values() for claim in claims}
    manifest["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in sorted(named)]
    manifest["spec"]["containers"] = [
        {**first, "name": container, "resources": {"claims": [_use(claim) for claim in claims]}}
        for container, claims in containers.items()
    ]
    return manifest


def _use(claim: str) -> Json:
    name, _, request = claim.partition("/")
    return {"name": name} | ({"request": request} if request else {})


def gpus(node: Node, name: str, container: str) -> tuple[set[str], dict[str, str]]:
    """UUIDs of the GPUs whose device nodes a container has, which are those of its environment; and that."""
    env = node.cluster.exec_env(name, container)
    uuids = set(filter(None, env.get("NVIDIA_VISIBLE_DEVICES", "").split(",")))
    minors = {str(gpu["minor"]) for gpu in node.agent.status()["gpus"] if gpu["uuid"] in uuids}
    devices = node.cluster.container_devices(name, container)
    assert {f"nvidia{minor}" for minor in minors} == {device for device in devices if device[-1].isdecimal()}
    return uuids, env


def test_two_requests_of_a_claim_go_to_two_containers(node: Node, make_claim: Callable[..., None]) -> None:
    make_claim("both", share=share("4Gi"), whole=whole())
    node.run(pod("split", main=["both/share"], side=["both/whole"], all=["both"]))
    of_main, env = gpus(node, "split", "main")
    of_side, env_of_side = gpus(node, "split", "side")
    of_all, env_of_all = gpus(node, "split", "all")
    assert (len(of_main), len(of_side), of_main & of_side) == (1, 1, set())
    assert of_all == of_main | of_side
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == env_of_all["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert "ALIYUN_COM_GPU_MEM_CONTAINER" not in env_of_side


def test_a_container_has_two_claims(node: Node, make_claim: Callable[..., None]) -> None:
    """A share and a whole GPU side by side; the other container has a claim of its own."""
    make_claim("share", gpu=share("4Gi"))
    make_claim("whole", gpu=whole())
    make_claim("other", gpu=share("6Gi"))
    node.run(pod("several", main=["share", "whole"], side=["other"]), timeout=SEVERAL_S)
    of_main, env = gpus(node, "several", "main")
    of_side, env_of_side = gpus(node, "several", "side")
    assert (len(of_main), len(of_side)) == (2, 1)
    assert of_side < of_main, "binpack puts both shares on one GPU"
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert env_of_side["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"


def test_gpus_of_limits_are_beside_a_claim(node: Node, make_claim: Callable[..., None]) -> None:
    make_claim("share", gpu=share("4Gi"))
    manifest = pod("beside", main=["share"])
    manifest["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": "1"}
    node.run(manifest, timeout=SEVERAL_S)
    uuids, env = gpus(node, "beside", "main")
    assert len(uuids) == 2
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"


def test_a_monitor_sees_all_gpus_and_holds_none(node: Node, make_claim: Callable[..., None]) -> None:
    make_claim("watch", all=whole(allocationMode="All", adminAccess=True))
    make_claim("share", gpu=share("4Gi"))
    node.run(pod("monitor", main=["watch"]))
    node.run(pod("user", main=["share"]))
    uuids, env = gpus(node, "monitor", "main")
    shown = node.agent.status()["gpus"]
    assert uuids == {gpu["uuid"] for gpu in shown}
    assert not any(name.startswith(("ALIYUN_COM_GPU_MEM", "CUDA_MPS")) for name in env)
    assert sum(len(gpu["held"]) for gpu in shown) == 1
    # The agent knows the claims from kubelet, and which containers have them from its watch of pods.
    node.agent.wait(lambda page: all(gpu["monitors"] == ["default/monitor[main]"] for gpu in page["gpus"]))
    node.end("user")
    node.label("share")
    node.wait_amounts(mem=640)


NOTHING = {"requests": {"memory": "0", "sharers": "0"}}


@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_a_monitor_that_starts_last_sees_all_gpus_also_full_and_unhealthy_ones(
    node: Node, make_claim: Callable[..., None], placement: str
) -> None:
    """The scheduler compares what it asks for with what is left, and counts none of it as used."""
    node.label("dra", placement)
    make_claim("full", gpu=share("80Gi"))
    make_claim("share", gpu=share("4Gi"))
    make_claim("whole", gpus=whole(count=2))
    make_claim(
        "late",
        all=whole(allocationMode="All", adminAccess=True, capacity=NOTHING, tolerations=[{"operator": "Exists"}]),
    )
    node.run(pod("full", main=["full"]))
    node.run(pod("user", main=["share"]))
    node.run(pod("whole", main=["whole"]))
    shown = node.agent.status()["gpus"]
    held = [gpu["uuid"] for gpu in shown if gpu["held"]]
    unused = next(number for number, gpu in enumerate(shown) if gpu["uuid"] not in held)
    node.agent.inject(fault="xid", gpu=unused, code=79)
    node.cluster.client.wait(SLICES, SLICE, lambda found: found is not None and len(tainted(found)) == 1)
    node.run(pod("monitor", main=["late"]))
    uuids, env = gpus(node, "monitor", "main")
    assert uuids == {gpu["uuid"] for gpu in shown}
    assert not any(name.startswith(("ALIYUN_COM_GPU_MEM", "CUDA_MPS")) for name in env)
    assert sum(bool(gpu["held"]) for gpu in node.agent.status()["gpus"]) == len(held)


def test_what_the_runtime_cannot_express_is_an_event(node: Node, make_claim: Callable[..., None]) -> None:
    make_claim("both", a=share("4Gi"), b=whole())
    node.pods.append("mixed")
    node.cluster.create_pod(pod("mixed", main=["both/a", "both/b"], side=["both/a"]))
    event(node, "mixed", "GPURefused", "both use claim both, and differ in what else they use")


def test_an_init_container_has_the_claim_before_the_others(node: Node, make_claim: Callable[..., None]) -> None:
    """It ends with an error unless it sees its share."""
    make_claim("share", gpu=share("4Gi"))
    manifest = pod("init", main=["share"])
    (main,) = manifest["spec"]["containers"]
    sees = ["/bin/sh", "-c", 'test "$ALIYUN_COM_GPU_MEM_CONTAINER" = 4 && test -e "/dev/nvidia$ALIYUN_COM_GPU_MEM_IDX"']
    manifest["spec"]["initContainers"] = [{**main, "name": "first", "command": sees}]
    node.run(manifest)
    uuids, env = gpus(node, "init", "main")
    assert len(uuids) == 1
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"


def test_a_container_that_is_started_again_keeps_its_gpu(node: Node, make_claim: Callable[..., None]) -> None:
    """Kubelet does not ask the agent again, and the claim stays as long as the pod."""
    make_claim("share", gpu=share("4Gi"))
    manifest = pod("again", main=["share"])
    manifest["spec"]["restartPolicy"] = "Always"
    node.run(manifest)
    before, _ = gpus(node, "again", "main")
    # From outside: the first process of a container ignores signals until its program has set a handler.
    node.cluster.container("again").kill()
    node.cluster.wait_pod("again", has_restarted)
    after, env = gpus(node, "again", "main")
    assert after == before
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"


def has_restarted(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses", ())
    return any(status["restartCount"] and "running" in status["state"] for status in statuses)


def test_the_claim_of_limits_goes_with_a_pod_that_completes_or_fails(node: Node) -> None:
    """The scheduler has made it, so nobody else removes it. Its GPUs are free again."""
    for name, code in (("completes", 0), ("fails", 1)):
        manifest = pod_manifest(name, {"aliyun.com/gpu": 8}, command=["/bin/sh", "-c", f"exit {code}"])
        node.pods.append(name)
        node.cluster.create_pod(manifest)
        node.cluster.wait_phase(name, "Failed" if code else "Succeeded")
        wait_files(node, 0)
    node.run(pod_manifest("next", {"aliyun.com/gpu": 8}))


def test_no_more_gpus_are_given_by_limits_than_there_are(node: Node) -> None:
    node.run(pod_manifest("most", {"aliyun.com/gpu": 7}))
    node.pods.append("waits")
    node.cluster.create_pod(pod_manifest("waits", {"aliyun.com/gpu": 2}))
    node.cluster.wait_pod("waits", is_unschedulable)
    node.end("most")
    node.cluster.wait_phase("waits", "Running")


def is_unschedulable(pod: Json) -> bool:
    return any(condition.get("reason") == "Unschedulable" for condition in pod["status"].get("conditions", ()))


IMPLICIT = "deviceclass.resource.kubernetes.io/gpu.gpuagent.io"


def test_limits_of_zero_gpus_need_no_claim_unless_a_plugin_has_the_resource_too(node: Node) -> None:
    """Kubelet rejects a pod with 0 of a resource that a device plugin has without devices, as in every mode but one."""
    node.run(pod_manifest("none", {IMPLICIT: 0}))
    assert "NVIDIA_VISIBLE_DEVICES" not in node.cluster.exec_env("none")
    node.pods.append("rejected")
    node.cluster.create_pod(pod_manifest("rejected", {"aliyun.com/gpu": 0}))
    rejected = node.cluster.wait_phase("rejected", "Failed")
    assert "no healthy devices present" in rejected["status"]["message"]
    wait_files(node, 0)


def test_the_implicit_resource_of_a_class_is_beside_the_explicit_one(node: Node) -> None:
    """Both in one container: one GPU each."""
    limits = {"aliyun.com/gpu": 1, IMPLICIT: 1}
    node.run(pod_manifest("both", limits))
    uuids, _ = gpus(node, "both", "main")
    assert len(uuids) == 2
