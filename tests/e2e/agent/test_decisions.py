"""Decisions of schedulers about shares, on a real kubelet: every pod has the GPU that was chosen for it.

Most pods of the bursts never start: their runtime class names a handler that the runtime does not have. Kubelet admits
them like any other, and its checkpoint has the devices and the agent's whole answer, environment included. So hundreds
fit on a small machine. Others run, and are looked into.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpuagent.domain.annotations import MEMORY_ANNOTATION
from gpuagent.domain.mode import GPU_MEM as MEM
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decisions import Gpus, admitted, audit_decisions, gpu_entries, held_by, true_answer
from tests.e2e.agent.podannotations import event, heard
from tests.e2e.agent.scheduler import NAME, Family, Scheduler, stale
from tests.e2e.cluster import NODE_NAME, Cluster, container, pod_manifest

GPUS, WHOLE = 8, 80
PODS, BURST = 500, 100
FAMILIES = Family.V1, Family.V2
MINUTE = 60.0
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
    """The kubelet under the test; 1.36 again afterwards. The older one answers `List` only."""
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
        spec["initContainers"] = [container("init", {MEM: size}, command=["/bin/sh", "-c", "env"])]
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


def burst(node: Node, scheduler: Scheduler, manifests: dict[str, dict[str, Any]], rng: random.Random) -> None:
    """Create the pods, and bind them in another order; the scheduler dies once between its two steps."""
    names = list(manifests)
    node.pods += names
    in_parallel(lambda name: node.cluster.create_pod(manifests[name]), names)
    for name in rng.sample(names, len(names) // 10):
        scheduler.assume(name, rng.choice(FAMILIES))
    scheduler.restart()
    for name in rng.sample(names, len(names)):
        scheduler.assume(name, rng.choice(FAMILIES))
    in_parallel(scheduler.bind, rng.sample(names, len(names)))


def test_500_pods_in_bursts_and_random_order_get_what_was_chosen_for_them(
    kubelet: str, make_node: Callable[..., Node], never_starts: str
) -> None:
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(kubelet)
    scheduler = Scheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=7)
    for first in range(0, PODS, BURST):
        names = [f"burst-{number}" for number in range(first, first + BURST)]
        burst(node, scheduler, {name: manifest(name, rng, never_starts) for name in names}, rng)
        # The agent reads kubelet's book, and annotates what is in it, when a container starts.
        node.run(pod_manifest(f"runs-{first}", {MEM: 1}))
        names.append(f"runs-{first}")
        audit_decisions(node, scheduler.decided, names)
        for name in names:
            node.cluster.delete_pod(name, timeout=0)
        for name in names:
            node.cluster.client.wait("/api/v1/namespaces/default/pods", name, lambda pod: pod is None, 30)
            node.pods.remove(name)
        scheduler.forget(*names)


def test_running_pods_see_what_was_chosen_for_them(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(1)
    scheduler = Scheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=1)
    names = [f"runs-{number}" for number in range(12)]
    for name in names:
        node.pods.append(name)
        node.cluster.create_pod(manifest(name, rng, None))
        scheduler.assume(name, rng.choice(FAMILIES))
    rng.shuffle(names)
    in_parallel(scheduler.bind, names)
    for name in names:
        node.cluster.wait_phase(name, "Running", timeout=120)
    audit_decisions(node, scheduler.decided, names)
    minors = {gpu["uuid"]: gpu["minor"] for gpu in node.agent.status()["gpus"]}
    for name, decision in scheduler.decided.items():
        seen = node.cluster.exec_env(name)["NVIDIA_VISIBLE_DEVICES"]
        assert decision[0] == (minors[seen],)


def test_an_api_server_that_is_away_for_a_minute_in_the_middle_of_a_burst(
    make_node: Callable[..., Node], never_starts: str
) -> None:
    """Kubelet, paused while they were bound, admits a third of the pods when the server has gone."""
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(60)
    scheduler = Scheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=60)
    names = [f"away-{number}" for number in range(60)]
    node.pods += names
    for number, name in enumerate(names):
        made = manifest(name, rng, never_starts if number % 3 else None)
        made["spec"]["automountServiceAccountToken"] = False  # which kubelet would have to ask the server for
        node.cluster.create_pod(made)
        scheduler.assume(name, rng.choice(FAMILIES))
    before, meanwhile, later = names[:20], names[20:40], names[40:]
    in_parallel(scheduler.bind, before)
    node.run(pod_manifest("runs", {MEM: 1}))
    audit_decisions(node, scheduler.decided, before)
    containers = {name: node.cluster.container(name) for name in before[::3]}
    forged = pod_manifest("forged", {MEM: 1}, annotations={MEMORY_ANNOTATION: '{"0":{"0":70}}'}, node=NODE_NAME)
    refused = pod_manifest("refused", {MEM: 1}, annotations={MEMORY_ANNOTATION: '{"0":{"9":1}}'}, node=NODE_NAME)

    node.cluster.pause_kubelet()
    in_parallel(scheduler.bind, rng.sample(meanwhile, len(meanwhile)))
    for extra in (forged, refused):
        node.pods.append(extra["metadata"]["name"])
        node.cluster.create_pod(extra)
    pods = {name: node.cluster.pod(name) for name in meanwhile}
    heard(node, "runs")
    node.cluster.stop_apiserver()
    went = time.monotonic()
    try:
        node.cluster.resume_kubelet()
        while missing := [name for name, pod in pods.items() if not admitted(node.cluster.checkpoint(), pod)]:
            assert time.monotonic() < went + MINUTE, f"not admitted without the server: {missing}"
            time.sleep(0.1)
        gpus, checkpoint = Gpus(node), node.cluster.checkpoint()
        for name, pod in pods.items():
            entries = gpu_entries(checkpoint, pod)
            for entry in entries:
                true_answer(entry, gpus)
            held = held_by(pod, entries, gpus).apps[MEM]
            assert {number: tuple(units) for number, units in held.items()} == scheduler.decided[name]
        for name in pods:
            if "runtimeClassName" not in pods[name]["spec"]:
                wait_started(node, name, went + MINUTE)
                assert {gpus.minors[uuid] for uuid in node.gpus_of(name)} == set(scheduler.decided[name][0])
        time.sleep(max(0.0, went + MINUTE - time.monotonic()))
    finally:
        node.cluster.start_apiserver(timeout=150)  # kubelet looks for it ever more rarely

    scheduler.restart()
    in_parallel(scheduler.bind, later)
    assert node.cluster.wait_phase("refused", "Failed")["status"]["reason"] == "UnexpectedAdmissionError"
    audit_decisions(node, scheduler.decided, [*names, "runs", "forged"])
    for name, reason in (
        ("forged", "GpuDecisionIgnored"),
        ("forged", "AnnotationCorrected"),
        ("refused", "GpuRefused"),
    ):
        event(node, name, reason, timeout=45)
    assert {name: node.cluster.container(name) for name in containers} == containers


def wait_started(node: Node, name: str, end: float) -> None:
    """Its container runs, as the node sees it."""
    while True:
        try:
            node.cluster.container(name)
        except LookupError:
            assert time.monotonic() < end, f"{name} does not start without the server"
            time.sleep(0.1)
        else:
            return
