"""A tenant patches the annotations of a running pod five times a second, and nobody else is refused for it.

`TENANT_VICTIMS` is how many pods of others are placed meanwhile in each mode, by default 21.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, KEYS, MEMORY_ANNOTATION
from gpuagent.domain.scheduling.held_gpus import HeldGpu, held_gpus
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION
from tests.e2e.agent.bursts import GPUS, WHOLE
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.test_gpuscheduler import Scheduled, scheduled
from tests.e2e.cluster import Cluster, pod_manifest

__all__ = ["scheduled"]

VICTIMS = int(os.environ.get("TENANT_VICTIMS", "21"))
EVERY_S = 0.2
MERGE = "application/merge-patch+json"
ATTACKER = "attacker"
MOST_EVENTS = 60
"""Corrections double their distance up to minutes, with up to two texts each. Unbounded, there are five a second."""


def forgeries(uid: str, gpu: int, size: int) -> list[dict[str, Any]]:
    """What the tenant writes in turn: another GPU, every GPU, nothing, a copy, and labels."""
    other = (gpu + 1) % GPUS
    everything = ",".join(map(str, range(GPUS)))
    shares = {str(n): size for n in range(GPUS)}
    forged: list[dict[str, Any]] = [
        {MEMORY_ANNOTATION: f'{{"0":{{"{other}":{size}}}}}', GROUP_ANNOTATION: str(other), DECIDED_ANNOTATION: uid},
        {MEMORY_ANNOTATION: f'{{"0":{shares}}}'.replace("'", '"'), GROUP_ANNOTATION: everything},
        dict.fromkeys(KEYS),
        {DECIDED_ANNOTATION: "another"},
    ]
    labels = ({GPU_COUNT_LABEL: str(GPUS)}, {GPU_COUNT_LABEL: None})
    return [{"annotations": texts, "labels": labels[n % 2]} for n, texts in enumerate(forged)]


@contextmanager
def patched(cluster: Cluster, metadata: list[dict[str, Any]]) -> Iterator[Callable[[], int]]:
    """The tenant at work; yields how often it has written."""
    ended, written = threading.Event(), count()
    writes = 0

    def patch() -> None:
        nonlocal writes
        path = f"/api/v1/namespaces/default/pods/{ATTACKER}"
        while not ended.wait(EVERY_S):
            body = {"metadata": metadata[next(written) % len(metadata)]}
            writes += cluster.api("PATCH", path, body, MERGE)[0] == 200

    thread = threading.Thread(target=patch, name="tenant", daemon=True)
    thread.start()
    try:
        yield lambda: writes
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("mode", "resource", "size"), [("share", GPU_MEM, WHOLE), ("topology", GPU_WHOLE, 1)])
def test_no_victim_is_refused(
    make_node: Callable[..., Node],
    never_starts: str,
    scheduled: Callable[[Node], Scheduled],  # noqa: F811 (the fixture)
    mode: str,
    resource: str,
    size: int,
) -> None:
    """The attacker has one GPU, and each round of victims takes all others, each one GPU."""
    node = make_node(mode=mode)
    node.wait_amounts(**({"mem": GPUS * WHOLE} if mode == "share" else {"gpu": GPUS}))
    scheduler = scheduled(node)
    attacker = scheduler.create([pod_manifest(ATTACKER, {resource: size})])
    node.cluster.wait_phase(ATTACKER, "Running")
    scheduler.audit(attacker)
    ((gpu,),) = scheduler.decisions.decided[ATTACKER].values()
    uid = node.cluster.pod(ATTACKER)["metadata"]["uid"]
    placed = 0
    with patched(node.cluster, forgeries(uid, gpu, size)) as writes:
        for number in count():
            restarts = placed >= VICTIMS
            if restarts:
                # What a restarted scheduler reads on the pod is forged; the Node knows better.
                scheduler.replica.extender.kill()
                scheduler.replica.start()
            made = [pod_manifest(f"victim-{number}-{n}", {resource: size}) for n in range(GPUS - 1)]
            for victim in made:
                victim["spec"]["runtimeClassName"] = never_starts
            victims = scheduler.create(made)
            scheduler.audit(victims)  # fails for one that kubelet has refused
            placed += len(victims)
            assert gpu not in {
                minor for name in victims for gpus in scheduler.decisions.decided[name].values() for minor in gpus
            }
            node.end(*victims)  # in order: of a pod that is forced away, kubelet still holds the devices
            if restarts:
                break
        print(f"{mode}: {placed} victims, 0 refused, beside {writes()} patches")  # noqa: T201 (a figure)
    expected = HeldGpu(gpu, memory=size) if mode == "share" else HeldGpu(gpu, whole=True)
    # The agent sees the end of the last victims a little later.
    node.cluster.wait_node(lambda found: held_gpus(found["metadata"]["annotations"]) == {uid: (expected,)})
    of_attacker = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid%3D{uid}"
    events = node.cluster.client.expect("GET", of_attacker)["items"]
    corrections = [event for event in events if event["reason"] == "AnnotationCorrected"]
    assert 1 <= sum(event.get("count", 1) for event in corrections) <= MOST_EVENTS
