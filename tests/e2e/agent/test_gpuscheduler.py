"""The agent on a real kubelet with our own scheduler: kube-scheduler chooses the node, gpuscheduler the GPUs.

Every pod is admitted at its first try, on the GPUs that were chosen for it.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.pods.annotations import CORE_ANNOTATION, DECIDED_ANNOTATION, MEMORY_ANNOTATION, gpu_names
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.agent.bursts import GPUS, MANY, WHOLE, in_parallel, manifest
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import audit_decisions
from tests.e2e.agent.share_scheduler import Decision
from tests.e2e.amounts import SEED, count, older_kubelet_in_long
from tests.e2e.build import bin_dir
from tests.e2e.cluster import Cluster, pod_manifest
from tests.e2e.cluster.component_settings import API_ADDRESS, API_PORT
from tests.e2e.cluster.processes import Process
from tests.e2e.scheduler.control_plane import LEASE, LEASES, RIGHTS
from tests.e2e.scheduler.pod_watch import PodWatch
from tests.e2e.scheduler.pods import SCHEDULER_NAME
from tests.e2e.scheduler.replica import Replica

PODS = "/api/v1/namespaces/default/pods"


@dataclass
class Decisions:
    """What the scheduler chose for each pod, by name, as the pod's binding shows it; the agent may correct it later."""

    decided: dict[str, Decision] = field(default_factory=dict)

    def seen(self, pod: dict[str, Any]) -> None:
        name, notes = pod["metadata"]["name"], pod["metadata"].get("annotations") or {}
        if "nodeName" not in pod["spec"] or name in self.decided or DECIDED_ANNOTATION not in notes:
            return
        assert notes[DECIDED_ANNOTATION] == pod["metadata"]["uid"]
        shares = json.loads(notes.get(MEMORY_ANNOTATION) or notes.get(CORE_ANNOTATION) or "{}")
        group = gpu_names(notes, GROUP_ANNOTATION)
        if isinstance(group, tuple):
            self.decided[name] = {0: tuple(map(int, group))}
        else:
            self.decided[name] = {int(n): tuple(map(int, gpus)) for n, gpus in shares.items()}

    def gone(self, uid: str) -> None:
        """A pod that is no more; its decision is forgotten by name."""


class KubeletPlane:
    """The cluster of the real kubelet, as a replica needs it."""

    def __init__(self, cluster: Cluster, workdir: Path) -> None:
        self.workdir, self.bin, self.address = workdir, bin_dir(), (API_ADDRESS, API_PORT)
        self.kubeconfig = cluster.kubeconfig
        for name in ("logs", "pids"):
            (workdir / name).mkdir()

    def process(self, name: str, command: Iterable[str]) -> Process:
        bound = ("setpriv", "--pdeathsig", "KILL", *command)
        return Process(name, bound, self.workdir / "logs" / f"{name}.log", self.workdir / "pids")


@dataclass(frozen=True)
class Scheduled:
    """Pods that our scheduler places on the one node."""

    node: Node
    pods: PodWatch
    decisions: Decisions
    replica: Replica

    def create(self, manifests: Iterable[dict[str, Any]]) -> list[str]:
        """Create pods, all at once; returns their names."""
        made = {one["metadata"]["name"]: one for one in manifests}
        for one in made.values():
            one["spec"]["schedulerName"] = SCHEDULER_NAME
        self.node.pods += made
        in_parallel(lambda name: self.node.cluster.create_pod(made[name]), list(made))
        return list(made)

    def audit(self, names: list[str]) -> None:
        """Wait until all are placed; kubelet admits each, on the GPUs that were chosen for it."""
        self.pods.wait(lambda pods: all(name in pods and "nodeName" in pods[name]["spec"] for name in names))
        assert self.decisions.decided.keys() >= set(names)
        audit_decisions(self.node, self.decisions.decided, names)

    def delete(self, names: list[str]) -> None:
        for name in names:
            self.node.cluster.delete_pod(name, timeout=0)
        self.pods.wait(lambda pods: not pods.keys() & set(names))
        for name in names:
            self.node.pods.remove(name)
            del self.decisions.decided[name]


@pytest.fixture
def scheduled(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[Node], Scheduled]]:
    """Starts kube-scheduler and gpuscheduler for a node."""
    with ExitStack() as stack:

        @contextmanager
        def rights() -> Iterator[None]:
            cluster.apply_rbac(RIGHTS)
            yield
            for right in RIGHTS:
                cluster.api("DELETE", cluster.client.path_of(right))
            # On a busy machine, kube-scheduler is killed before it gives its lease of ten minutes back.
            cluster.api("DELETE", f"{LEASES}/{LEASE}")

        def start(node: Node) -> Scheduled:
            stack.enter_context(rights())
            directory = tmp_path / "scheduler"
            directory.mkdir()
            replica, pods, decisions = (
                Replica(KubeletPlane(cluster, directory), "a"),
                PodWatch(cluster.client),
                Decisions(),
            )
            stack.callback(replica.stop)
            replica.start()
            stack.callback(pods.stop)
            pods.start()
            pods.listen(decisions)
            return Scheduled(node, pods, decisions, replica)

        yield start


@older_kubelet_in_long
def test_bursts_of_shares(
    kubelet: str, make_node: Callable[..., Node], never_starts: str, scheduled: Callable[[Node], Scheduled]
) -> None:
    """Half of each burst stays while the next one comes."""
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    scheduler, rng, before = scheduled(node), random.Random(f"{kubelet} {SEED}"), list[str]()
    for turn in range(count(2, 4)):
        names = [f"burst-{turn}-{number}" for number in range(80)]
        scheduler.create(manifest(name, rng, never_starts) for name in names)
        # The agent reads kubelet's allocations, and annotates what is in them, when a container starts.
        runs = scheduler.create([pod_manifest(f"runs-{turn}", {GPU_MEM: 1})])
        node.cluster.wait_phase(runs[0], "Running")
        scheduler.audit([*before, *names, *runs])
        leaving = rng.sample(names, len(names) // 2)
        scheduler.delete([*leaving, *before])
        before = [name for name in names if name not in leaving]


def test_a_burst_of_memory_and_compute(
    make_node: Callable[..., Node], never_starts: str, scheduled: Callable[[Node], Scheduled]
) -> None:
    node = make_node(mode="core_mem", flags=(*MANY, "--allow-unisolated"))
    node.wait_amounts(mem=GPUS * WHOLE, core=GPUS * 100)
    scheduler, rng = scheduled(node), random.Random(9)
    made = [
        pod_manifest(f"both-{n}", {GPU_MEM: rng.choice([2, 5, 10]), GPU_CORE: rng.choice([5, 10, 10])})
        for n in range(50)
    ]
    for one in made:
        one["spec"]["runtimeClassName"] = never_starts
    names = scheduler.create(made)
    runs = scheduler.create([pod_manifest("runs", {GPU_MEM: 2, GPU_CORE: 5})])
    node.cluster.wait_phase("runs", "Running")
    scheduler.audit([*names, *runs])


def test_a_job_and_whole_gpus(make_node: Callable[..., Node], scheduled: Callable[[Node], Scheduled]) -> None:
    """A job of which only one pod fits waits as a whole and holds nothing; it starts when others end."""
    node = make_node(mode="topology")
    node.wait_amounts(gpu=GPUS)
    scheduler = scheduled(node)
    first = scheduler.create([pod_manifest("first", {GPU_WHOLE: 3})])
    node.cluster.wait_phase("first", "Running")
    labels = {JOB_LABEL: "train", REPLICAS_LABEL: "3"}
    members = scheduler.create(pod_manifest(f"train-{n}", {GPU_WHOLE: 2}, labels=labels) for n in range(3))
    single = scheduler.create([pod_manifest("single", {GPU_WHOLE: 3})])
    node.cluster.wait_phase("single", "Running")
    scheduler.audit([*first, *single])
    node.cluster.wait_pod(members[0], shows_why)
    assert not any("nodeName" in node.cluster.pod(name)["spec"] for name in members)
    scheduler.delete(first)
    scheduler.delete(single)
    for name in members:
        node.cluster.wait_phase(name, "Running")
    scheduler.audit(members)


def shows_why(pod: dict[str, Any]) -> bool:
    """Whether kube-scheduler's condition has the scheduler's reason."""
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "PodScheduled" and "job" in one.get("message", "") for one in conditions)
