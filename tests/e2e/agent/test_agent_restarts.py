"""The agent starts again amid bursts of decided pods and jobs: no pod gets another GPU than was chosen for it.

Pods that kubelet meets while the agent is away fail, as do those that the agent cannot identify.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.allocator.allocator_state import DECIDED_PODS_S
from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.agent.bursts import FAMILIES, GPUS, MANY, WHOLE, in_parallel, manifest
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import NamesOfGpus, admitted, gpu_entries, held_by, true_answer
from tests.e2e.agent.share_scheduler import NAME, AnnotationFamily, ShareScheduler
from tests.e2e.agent.slow_proxies import SlowApi, slow_api
from tests.e2e.amounts import SEED, count
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest

KILLS = count(usual=6, long=100)
"""For each of two modes."""
UNIDENTIFIED = "the agent cannot identify the requesting pod"


class Bursts:
    """Bursts of a scheduler's pods: of few sizes in mode `share`, jobs of whole GPUs in mode `topology`."""

    def __init__(self, node: Node, mode: str, never_starts: str, rng: random.Random) -> None:
        self._node, self._mode, self._never_starts, self._rng = node, mode, never_starts, rng
        units, whole = (WHOLE - 25, WHOLE) if mode == "share" else (1, 1)
        self._scheduler = ShareScheduler(node.cluster, GPUS, units, whole, seed=rng.randrange(1000))
        self._gpus = NamesOfGpus(node)
        self._count = 0
        self.outcomes: Counter[str] = Counter()

    def make(self, pods: int) -> list[str]:
        """Names of new pods, for which the scheduler has chosen GPUs; they are not bound yet."""
        names = []
        job = f"job-{self._count}"
        for _ in range(pods):
            self._count += 1
            names.append(f"pod-{self._count}")
            self._node.pods.append(names[-1])
            self._node.cluster.create_pod(self._manifest(names[-1], job, pods))
            family = self._rng.choice(FAMILIES) if self._mode == "share" else AnnotationFamily.GROUP
            self._scheduler.assume(names[-1], family)
        return names

    def _manifest(self, name: str, job: str, pods: int) -> dict[str, Any]:
        if self._mode == "share":
            return manifest(name, self._rng, self._never_starts)
        made = pod_manifest(name, {GPU_WHOLE: 1})
        made["metadata"]["labels"] = {JOB_LABEL: job, REPLICAS_LABEL: str(pods)}
        made["spec"] |= {"schedulerName": NAME, "runtimeClassName": self._never_starts}
        return made

    def bind(self, names: list[str]) -> None:
        in_parallel(self._scheduler.bind, self._rng.sample(names, len(names)))

    def check(self, names: list[str]) -> Counter[str]:
        """Check what each pod has got, and delete the pods. Returns how many were admitted, refused and so on."""
        outcomes = Counter(self._outcome(name) for name in names)
        for name in names:
            self._node.cluster.delete_pod(name, timeout=0)
        for name in names:
            self._node.cluster.client.wait("/api/v1/namespaces/default/pods", name, lambda pod: pod is None)
            self._node.pods.remove(name)
        self._scheduler.forget(*names)
        self.outcomes += outcomes
        return outcomes

    def _outcome(self, name: str) -> str:
        end = time.monotonic() + WAIT_S
        while True:
            pod, checkpoint = self._node.cluster.pod(name), self._node.cluster.checkpoint()
            if pod["status"]["phase"] == "Failed":
                message = pod["status"].get("message", "")
                return "unidentified" if UNIDENTIFIED in message else "refused"
            if admitted(checkpoint, pod):
                break
            assert time.monotonic() < end, f"{name} is neither admitted nor refused: {pod['status']}"
            time.sleep(0.05)
        entries = gpu_entries(checkpoint, pod)
        for entry in entries:
            true_answer(entry, self._gpus)
        resource = GPU_MEM if self._mode == "share" else GPU_WHOLE
        held = held_by(pod, entries, self._gpus).apps[resource]
        has = {number: tuple(sorted(units)) for number, units in held.items()}
        chosen = {number: tuple(sorted(gpus)) for number, gpus in self._scheduler.decided[name].items()}
        assert has == chosen, f"{name} has {has}, and {chosen} was chosen\n{self._node.agent.log_text()[-6000:]}"
        return "admitted"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["share", "topology"])
def test_killed_amid_bursts_of_decided_pods_and_jobs(
    kubelet: str, make_node: Callable[..., Node], never_starts: str, mode: str
) -> None:
    node = make_node(mode=mode, flags=MANY)
    rng = random.Random(f"{SEED} {kubelet} {mode}")
    node.wait_amounts(**{"mem": GPUS * WHOLE} if mode == "share" else {"gpu": GPUS})
    bursts = Bursts(node, mode, never_starts, rng)
    for _ in range(KILLS):
        before, meanwhile, after = bursts.make(2), bursts.make(2), bursts.make(4)
        binding = threading.Thread(target=bursts.bind, args=(before,))
        binding.start()
        time.sleep(rng.uniform(0, 0.5))
        node.agent.kill()
        node.agent.start()
        for name in meanwhile:
            time.sleep(rng.uniform(0, 0.4))
            bursts.bind([name])
        node.agent.wait_ready()  # it has registered: its first calls come now
        bursts.bind(after)
        binding.join()
        bursts.check([*before, *meanwhile, *after])
    print(f"\n{KILLS} kills, kubelet {kubelet}, mode {mode}: {dict(bursts.outcomes)}")
    assert bursts.outcomes["admitted"], "no pod was admitted"


@pytest.fixture
def api(cluster: Cluster, tmp_path: Path) -> Iterator[SlowApi]:
    with slow_api(cluster, tmp_path) as made:
        yield made


@pytest.fixture
def bursts(api: SlowApi, make_node: Callable[..., Node], never_starts: str) -> tuple[Node, Bursts]:
    """On a node where a scheduler has chosen GPUs before."""
    node = make_node(mode="share", flags=(*MANY, "--kubeconfig", str(api.kubeconfig)))
    node.wait_amounts(mem=GPUS * WHOLE)
    made = Bursts(node, "share", never_starts, random.Random(SEED))
    first = made.make(2)
    made.bind(first)
    assert made.check(first) == {"admitted": 2}
    return node, made


@pytest.mark.parametrize("late_s", [5.0, 60.0])
def test_the_first_list_of_pods_is_late(kubelet: str, api: SlowApi, bursts: tuple[Node, Bursts], late_s: float) -> None:
    """After 10 s, the agent reads the pods that kubelet lists."""
    node, made = bursts
    names = made.make(12)
    api.lists_late_s = late_s
    node.restart_agent(node.agent.kill)
    made.bind(names)
    assert made.check(names) == {"admitted": 12}


def test_an_api_server_that_comes_back_after_the_agent(kubelet: str, api: SlowApi, bursts: tuple[Node, Bursts]) -> None:
    """Kubelet has the pods, and its calls wait for those of the agent."""
    node, made = bursts
    names = made.make(12)
    api.away = True
    began = time.monotonic()
    node.restart_agent(node.agent.kill)
    made.bind(names)
    time.sleep(2)
    api.away = False
    waits_s = time.monotonic() - began
    outcomes = made.check(names)
    # On a machine that stood still, the server may be away for longer than calls wait for it.
    is_in_time = waits_s < DECIDED_PODS_S
    if is_in_time:
        assert outcomes == {"admitted": 12}
    else:
        print(f"\nThe server was away for {waits_s:.1f} s")
        assert outcomes.keys() <= {"admitted", "unidentified"}
