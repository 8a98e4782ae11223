"""Decisions of schedulers about shares, on a real kubelet: every pod has the GPU that was chosen for it.

Most pods of the bursts never start: their runtime class names a handler that the runtime does not have. Kubelet admits
them like any other, and its checkpoint has the devices and the agent's whole answer, environment included. So hundreds
fit on a small machine. Others run, and are looked into.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.annotations import (
    MEMORY_ANNOTATION,
    V1_ASSUMED,
    V1_GPU,
    V1_UNITS,
    Assumed,
    Shares,
    assumed,
    shares,
)
from gpuagent.domain.units import parse_id
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.scheduler import MEM, NAME, Scheduler, stale
from tests.e2e.cluster import NODE_NAME, Cluster, container, pod_manifest

GPUS, WHOLE = 8, 80
PODS, BURST = 500, 100
MANY = ("--max-pods-per-gpu", "200")
_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "never-starts"},
    "handler": "absent",
}


@pytest.fixture
def never_starts(cluster: Cluster) -> Iterator[str]:
    cluster.apply(_CLASS)
    yield "never-starts"
    cluster.api("DELETE", cluster.client.path_of(_CLASS))


@pytest.fixture(params=["1.36", "1.30"])
def kubelet(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The kubelet under the test; 1.36 again afterwards. The older one does not answer `Get`."""
    version = str(request.param)
    if version != cluster.kubelet_version:
        cluster.restart_kubelet(version)
    yield version
    if cluster.kubelet_version != "1.36":
        cluster.restart_kubelet("1.36")


def manifest(name: str, rng: random.Random, runtime_class: str | None) -> dict[str, Any]:
    """A pod of few sizes, so that many are alike: one container or two, some with an init container or a sidecar."""
    size = rng.choice([1, 2, 2, 3])
    made = pod_manifest(name, {MEM: size})
    spec = made["spec"]
    spec["schedulerName"] = NAME
    if rng.random() < 0.3:
        spec["containers"].append(container("second", {MEM: rng.choice([1, 2])}))
    first = rng.random()
    if first < 0.1:
        spec["initContainers"] = [container("init", {MEM: size}, command=["/bin/true"])]
    elif first < 0.2:
        spec["initContainers"] = [container("side", {MEM: 1}, restart_policy="Always")]
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    if rng.random() < 0.1:
        made["metadata"]["annotations"] = stale(rng.randrange(GPUS), size)
    return made


def in_parallel(work: Callable[[str], Any], names: list[str]) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, names))


def wait_admitted(node: Node, names: list[str]) -> dict[str, dict[str, Any]]:
    """The pods, once kubelet's checkpoint has an entry for each of their containers that ask for memory."""

    def complete(pod: dict[str, Any]) -> bool:
        held = {name for name, resource in node.cluster.checkpoint().held_by(pod["metadata"]["uid"]) if resource == MEM}
        asking = {c["name"] for c in pod["spec"]["containers"] if MEM in c["resources"].get("limits", {})}
        return asking <= held

    pods = {}
    for name in names:
        pods[name] = node.cluster.pod(name)
        while not complete(pods[name]):
            pods[name] = node.cluster.wait_pod(name, lambda pod: pod["status"]["phase"] == "Failed" or complete(pod))
            assert pods[name]["status"]["phase"] != "Failed", pods[name]["status"]
    return pods


def audit_decisions(node: Node, scheduler: Scheduler, names: list[str], *, exact: bool) -> int:
    """Environment and kubelet's book of each pod against what was chosen for it; how many have another GPU.

    `exact`: none has. Else equal requests have what was chosen for them in some order.
    """
    page = node.agent.status()
    minors = {gpu["uuid"]: gpu["minor"] for gpu in page["gpus"]}
    by_key = {uuid[4:12]: uuid for uuid in minors}
    pods = wait_admitted(node, names)
    checkpoint = node.cluster.checkpoint()
    chosen, has, other = Counter[tuple[int, int]](), Counter[tuple[int, int]](), []
    used = Counter[int]()
    for name, pod in pods.items():
        entries = {e.container: e for e in checkpoint.entries if e.pod_uid == pod["metadata"]["uid"]}
        for entry in entries.values():
            units = [unit for device_id in entry.ids if (unit := parse_id(device_id))]
            (uuid,) = {by_key[unit.gpu_key] for unit in units}
            answer = pb.ContainerAllocateResponse.FromString(entry.answer)
            assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid, (name, entry.container)
            assert answer.envs["ALIYUN_COM_GPU_MEM_IDX"] == str(minors[uuid])
            assert answer.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(len(entry.ids))
            used[minors[uuid]] += len(entry.ids)
        said = annotated(pod)
        for number, minor in scheduler.decided[name].items():
            spec = pod["spec"]["containers"][number]
            entry = entries[spec["name"]]
            (key,) = {unit.gpu_key for device_id in entry.ids if (unit := parse_id(device_id))}
            assert len(entry.ids) == int(spec["resources"]["limits"][MEM])
            chosen[len(entry.ids), minor] += 1
            has[len(entry.ids), minors[by_key[key]]] += 1
            assert said[number] == minor or not exact, (name, pod["metadata"]["annotations"])
            if minors[by_key[key]] != minor:
                other.append((name, spec["name"], minor, minors[by_key[key]]))
    assert all(count <= WHOLE for count in used.values())
    if exact:
        assert not other
    assert has == chosen
    return len(other)


def burst(node: Node, scheduler: Scheduler, manifests: dict[str, dict[str, Any]], rng: random.Random) -> None:
    """Create the pods, and bind them in another order; the scheduler dies once between its two steps."""
    names = list(manifests)
    node.pods += names
    in_parallel(lambda name: node.cluster.create_pod(manifests[name]), names)
    for name in rng.sample(names, len(names) // 10):
        scheduler.assume(name, older=rng.random() < 0.5)
    scheduler.restart()
    for name in rng.sample(names, len(names)):
        scheduler.assume(name, older=rng.random() < 0.5)
    in_parallel(scheduler.bind, rng.sample(names, len(names)))


def annotated(pod: dict[str, Any]) -> dict[int, int]:
    """Place of each container that asks for memory to the GPU that the pod's annotations name."""
    annotations = pod["metadata"]["annotations"]
    found = shares(annotations, MEMORY_ANNOTATION)
    if isinstance(found, Shares):
        return {number: minor for number, gpus in found.containers.items() for minor in gpus}
    older = assumed(annotations)
    assert isinstance(older, Assumed), annotations
    return dict.fromkeys(range(len(pod["spec"]["containers"])), older.gpu)


def test_500_pods_in_bursts_and_random_order_get_what_was_chosen_for_them(
    kubelet: str, make_node: Callable[..., Node], never_starts: str, record_property: Callable[[str, object], None]
) -> None:
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(kubelet)
    scheduler = Scheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=7)
    others = 0
    for first in range(0, PODS, BURST):
        names = [f"burst-{number}" for number in range(first, first + BURST)]
        burst(node, scheduler, {name: manifest(name, rng, never_starts) for name in names}, rng)
        others += audit_decisions(node, scheduler, names, exact=kubelet == "1.36")
        for name in names:
            node.cluster.delete_pod(name, timeout=0)
        for name in names:
            node.cluster.client.wait("/api/v1/namespaces/default/pods", name, lambda pod: pod is None, 30)
            node.pods.remove(name)
        scheduler.forget(*names)
    record_property("on another GPU than their own", others)
    print(f"kubelet {kubelet}: {PODS} pods, {others} containers on an equal one's GPU")


def test_running_pods_see_what_was_chosen_for_them(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(1)
    scheduler = Scheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=1)
    names = [f"runs-{number}" for number in range(12)]
    for name in names:
        node.pods.append(name)
        node.cluster.create_pod(manifest(name, rng, None))
        scheduler.assume(name, older=rng.random() < 0.5)
    rng.shuffle(names)
    in_parallel(scheduler.bind, names)
    for name in names:
        node.cluster.wait_phase(name, "Running", timeout=120)
    audit_decisions(node, scheduler, names, exact=True)
    minors = {gpu["uuid"]: gpu["minor"] for gpu in node.agent.status()["gpus"]}
    for name, decision in scheduler.decided.items():
        seen = node.cluster.exec_env(name)["NVIDIA_VISIBLE_DEVICES"]
        assert minors[seen] == decision[0]


def test_a_full_gpu_is_refused_with_the_reason_and_a_stale_copy_is_none_of_a_decision(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=GPUS * WHOLE)
    scheduler = Scheduler(node.cluster, GPUS, WHOLE, WHOLE, seed=2)
    big = pod_manifest("big", {MEM: WHOLE})
    big["spec"]["schedulerName"] = NAME
    node.pods.append("big")
    node.cluster.create_pod(big)
    scheduler.assume("big", older=True)
    scheduler.bind("big")
    node.cluster.wait_phase("big", "Running")
    taken = scheduler.decided["big"][0]
    forged = {**stale(taken, 4), V1_ASSUMED: "9999999999999999999", V1_UNITS: "4"}
    status = node.run(pod_manifest("late", {MEM: 4}, annotations=forged, node=NODE_NAME), phase="Failed")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert f"a scheduler chose GPU {taken} for it (annotation {V1_GPU})" in status["message"]
    node.run(pod_manifest("copy", {MEM: 4}, annotations=stale(taken, 4)))
    assert node.agent.status()["gpus"][taken]["uuid"] not in node.gpus_of("copy")
