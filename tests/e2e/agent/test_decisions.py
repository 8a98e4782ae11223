"""Decisions of schedulers about shares, on a real kubelet: every pod has the GPU that was chosen for it.

Most pods of the bursts never start, see `bursts`. Others run, and are looked into.
"""

import random
import time
from collections.abc import Callable

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import GPU_MEM as MEM
from tests.e2e.agent.bursts import FAMILIES, GPUS, MANY, WHOLE, burst, in_parallel, manifest
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import NamesOfGpus, admitted, audit_decisions, gpu_entries, held_by, true_answer
from tests.e2e.agent.podannotations import event, wait_watched
from tests.e2e.agent.share_scheduler import ShareScheduler
from tests.e2e.amounts import SEED, count
from tests.e2e.cluster import NODE_NAME, WAIT_S, pod_manifest

PODS, BURST = count(200, 500), 100
AWAY_S = count(10, 60)
"""The least time that the API server is away; however long kubelet takes, it comes back after the last pod runs."""


def test_pods_in_bursts_and_random_order_get_what_was_chosen_for_them(
    kubelet: str, make_node: Callable[..., Node], never_starts: str
) -> None:
    """Kubelet 1.30 answers `List` only."""
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(f"{kubelet} {SEED}")
    scheduler = ShareScheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, SEED)
    for first in range(0, PODS, BURST):
        names = [f"burst-{number}" for number in range(first, first + BURST)]
        burst(node, scheduler, {name: manifest(name, rng, never_starts) for name in names}, rng)
        # The agent reads kubelet's allocations, and annotates what they have, when a container starts.
        node.run(pod_manifest(f"runs-{first}", {MEM: 1}))
        names.append(f"runs-{first}")
        audit_decisions(node, scheduler.decided, names)
        for name in names:
            node.cluster.delete_pod(name, timeout=0)
        for name in names:
            node.cluster.client.wait("/api/v1/namespaces/default/pods", name, lambda pod: pod is None)
            node.pods.remove(name)
        scheduler.forget(*names)


def test_running_pods_see_what_was_chosen_for_them(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(1)
    scheduler = ShareScheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=1)
    names = [f"runs-{number}" for number in range(12)]
    for name in names:
        node.pods.append(name)
        node.cluster.create_pod(manifest(name, rng, None))
        scheduler.assume(name, rng.choice(FAMILIES))
    rng.shuffle(names)
    in_parallel(scheduler.bind, names)
    for name in names:
        node.cluster.wait_phase(name, "Running")
    audit_decisions(node, scheduler.decided, names)
    minors = {gpu["uuid"]: gpu["minor"] for gpu in node.agent.status()["gpus"]}
    for name, decision in scheduler.decided.items():
        seen = node.cluster.exec_env(name)["NVIDIA_VISIBLE_DEVICES"]
        assert decision[0] == (minors[seen],)


def test_an_api_server_that_is_away_in_the_middle_of_a_burst(make_node: Callable[..., Node], never_starts: str) -> None:
    """Kubelet, paused while they were bound, admits a third of the pods while the server is silent, and then gone."""
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    rng = random.Random(60)
    scheduler = ShareScheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=60)
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
    audit_decisions(node, scheduler.decided, [*before, "runs"])
    containers = {}
    for name in before[::3]:
        node.cluster.wait_phase(name, "Running")
        containers[name] = node.cluster.container(name)
    forged = pod_manifest("forged", {MEM: 1}, annotations={MEMORY_ANNOTATION: '{"0":{"0":70}}'}, node=NODE_NAME)
    refused = pod_manifest("refused", {MEM: 1}, annotations={MEMORY_ANNOTATION: '{"0":{"9":1}}'}, node=NODE_NAME)

    with node.cluster.paused_kubelet():
        in_parallel(scheduler.bind, rng.sample(meanwhile, len(meanwhile)))
        for extra in (forged, refused):
            node.pods.append(extra["metadata"]["name"])
            node.cluster.create_pod(extra)
        pods = {name: node.cluster.pod(name) for name in meanwhile}
        wait_watched(node, "runs")
        node.cluster.wait_kubelet_backlog("runs")
        node.cluster.silence_apiserver()
    try:
        node.cluster.wait_kubelet_read()
        node.cluster.stop_apiserver()
        went = time.monotonic()
        while missing := [name for name, pod in pods.items() if not admitted(node.cluster.checkpoint(), pod)]:
            assert time.monotonic() < went + WAIT_S, f"not admitted: {missing}\n{node.agent.log_text()[-6000:]}"
            time.sleep(0.1)
        gpus, checkpoint = NamesOfGpus(node), node.cluster.checkpoint()
        for name, pod in pods.items():
            entries = gpu_entries(checkpoint, pod)
            for entry in entries:
                true_answer(entry, gpus)
            held = held_by(pod, entries, gpus).apps[MEM]
            assert {number: tuple(units) for number, units in held.items()} == scheduler.decided[name]
        for name in pods:
            if "runtimeClassName" not in pods[name]["spec"]:
                wait_started(node, name)
                assert {gpus.minors[uuid] for uuid in node.gpus_of(name)} == set(scheduler.decided[name][0])
        time.sleep(max(0.0, went + AWAY_S - time.monotonic()))
    finally:
        node.cluster.start_apiserver()  # kubelet looks for it ever more rarely

    scheduler.restart()
    in_parallel(scheduler.bind, later)
    assert node.cluster.wait_phase("refused", "Failed")["status"]["reason"] == "UnexpectedAdmissionError"
    audit_decisions(node, scheduler.decided, [*names, "runs", "forged"])
    for name, reason in (
        ("forged", "GPUDecisionIgnored"),
        ("forged", "AnnotationCorrected"),
        ("refused", "GPURefused"),
    ):
        event(node, name, reason)
    assert {name: node.cluster.container(name) for name in containers} == containers


def wait_started(node: Node, name: str) -> None:
    """Its container runs, as the node sees it."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            node.cluster.container(name)
        except LookupError:
            assert time.monotonic() < end, f"{name} does not start without the server"
            time.sleep(0.1)
        else:
            return
