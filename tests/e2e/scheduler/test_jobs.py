"""Jobs that compete for nodes: each starts whole or not at all, whatever is killed meanwhile."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs import pod_group_labels
from gpuscheduler.core.jobs.priority.evictions import AGAIN_S
from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import SCHEDULER_NAME, job, pod, why
from tests.e2e.scheduler.replica import Replica

_NODES, _JOBS, _REPLICAS = 50, 10, 16
_FIT = _NODES // _REPLICAS


def test_jobs_that_compete_start_whole(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
) -> None:
    """Each round has as many jobs as fit; the extender is killed when the first pod of the round is bound."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(_NODES))
    replica = make_replica("a")
    waiting = {f"job-{n}": job(f"job-{n}", _REPLICAS, {GPU_WHOLE: 8}) for n in range(_JOBS)}
    pods = [pod for members in waiting.values() for pod in members]
    random.Random(1).shuffle(pods)
    control_plane.add_pods(pods)
    while waiting:
        control_plane.pods.wait(lambda pods: bool(_bound(pods)))
        replica.extender.kill()
        replica.revive()
        expected = min(_FIT, len(waiting))
        found = control_plane.pods.wait(lambda pods: _whole(pods) == expected)
        assert allocations.problems() == []
        started = set(_bound(found))
        control_plane.delete_pods([pod["metadata"]["name"] for name in started for pod in waiting.pop(name)])
        control_plane.pods.wait(lambda pods: not started.intersection(map(_job, pods.values())))


@pytest.fixture
def replica(make_replica: Callable[..., Replica]) -> Replica:
    return make_replica("a")


@pytest.fixture
def allocations(make_allocations: Callable[[Iterable[Json]], Allocations]) -> Allocations:
    """Four nodes of eight GPUs in the zone `few` after forty in the zone `many`."""
    zones = (*(("many", n) for n in range(40)), *(("few", n) for n in range(4)))
    return make_allocations(whole_node(f"{zone}-{n}", zone=zone) for zone, n in zones)


@pytest.mark.usefixtures("replica")
def test_a_job_with_a_node_selector_starts(control_plane: ControlPlane, allocations: Allocations) -> None:
    """Most nodes of the cluster would suit it by their GPUs, and kube-scheduler leaves them out."""
    control_plane.add_pods(job("job", 4, {GPU_WHOLE: 8}, node_selector={"zone": "few"}))
    found = control_plane.pods.wait(lambda pods: _bound(pods) == {"job": 4})
    assert {pod["spec"]["nodeName"] for pod in found.values()} == {f"few-{n}" for n in range(4)}
    assert allocations.problems() == []


def test_jobs_that_cannot_start_say_why_and_hold_nothing(
    control_plane: ControlPlane, allocations: Allocations, make_replica: Callable[..., Replica]
) -> None:
    """One is larger than the cluster, and in another the pods disagree."""
    # What it says first stays as long as nothing changes, so it has to know all nodes by then.
    make_replica("a")
    odd = job("odd", 2, {GPU_WHOLE: 1})
    odd[1]["metadata"]["labels"][REPLICAS_LABEL] = "3"
    created = control_plane.add_pods([*job("large", 45, {GPU_WHOLE: 8}), *odd])
    large = "job large: it asks for 360 of aliyun.com/gpu, and the cluster has 352"
    disagreement = "job odd: its pods disagree on label gpu-topology-replica (2 and 3)"
    # kube-scheduler asks about the first pod of the odd job before the second one is there, and then not again.
    control_plane.pods.wait(
        lambda pods: (
            all(large in why(pods, name) for name in created if name.startswith("large-"))
            and any(disagreement in why(pods, name) for name in created if name.startswith("odd-"))
        )
    )
    control_plane.add_pods(job("fits", 44, {GPU_WHOLE: 8}))
    control_plane.pods.wait(lambda pods: _bound(pods) == {"fits": 44})
    assert allocations.problems() == []


@pytest.mark.parametrize(
    ("title", "labels"),
    [
        ("job train", {JOB_LABEL: "train", REPLICAS_LABEL: "2"}),
        ("pod group train", {pod_group_labels.NAME: "train", pod_group_labels.MINIMUM: "2"}),
    ],
    ids=["labels", "labels of ACK's scheduler"],
)
def test_a_job_says_which_scheduler_all_of_its_pods_have_to_name(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    title: str,
    labels: Mapping[str, str],
) -> None:
    """One of its templates names another one."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    make_replica("a", "--scheduler-name", SCHEDULER_NAME)
    control_plane.add_pods([pod("first", {GPU_WHOLE: 8}, labels=labels)])
    there = f"{title}: 1 of 2 pods are there"
    control_plane.pods.wait(lambda pods: there in why(pods, "first"))
    control_plane.add_pods([pod("stray", {GPU_WHOLE: 8}, labels=labels, schedulerName="default-scheduler")])
    remedy = f"default-scheduler: set spec.schedulerName to {SCHEDULER_NAME} in its template"
    explained = f"{there}, and 1 names another scheduler, {remedy}"
    control_plane.pods.wait(lambda pods: explained in why(pods, "first"))
    control_plane.delete_pods(["stray"])
    control_plane.add_pods([pod("second", {GPU_WHOLE: 8}, labels=labels)])
    control_plane.pods.wait(lambda pods: pods.keys() == {"first", "second"} and _are_bound(pods, 2))
    assert allocations.problems() == []


@pytest.mark.usefixtures("replica")
def test_a_pod_evicts_another_pod_before_it_breaks_a_job(
    control_plane: ControlPlane, make_allocations: Callable[[Iterable[Json]], Allocations]
) -> None:
    """kube-scheduler itself would evict the youngest, which is a pod of the job."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(3))
    for name, value in (("low", 1), ("high", 1000)):
        control_plane.add_priority_class(name, value)
    control_plane.add_pods([pod("single", {GPU_WHOLE: 8}, priorityClassName="low")])
    control_plane.pods.wait(lambda pods: [pod["status"]["phase"] for pod in pods.values()] == ["Running"])
    # Start times count in seconds.
    time.sleep(1.1)
    members = job("job", 2, {GPU_WHOLE: 8})
    for member in members:
        member["spec"]["priorityClassName"] = "low"
    control_plane.add_pods(members)
    control_plane.pods.wait(lambda pods: _are_bound(pods, 3))
    control_plane.add_pods([pod("urgent", {GPU_WHOLE: 8}, priorityClassName="high")])
    left = control_plane.pods.wait(lambda pods: "urgent" in pods and _is_bound(pods["urgent"]))
    assert left.keys() == {"urgent", "job-0", "job-1"}
    assert allocations.problems() == []


@pytest.mark.usefixtures("replica")
def test_a_job_of_higher_priority_gets_what_becomes_free(
    control_plane: ControlPlane, make_allocations: Callable[[Iterable[Json]], Allocations]
) -> None:
    """Small pods that came later would take each part of it."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(4))
    control_plane.add_priority_class("patient", 1000, preemptionPolicy="Never")
    running = [f"old-{n}" for n in range(16)]
    control_plane.add_pods(pod(name, {GPU_WHOLE: 2}) for name in running)
    control_plane.pods.wait(lambda pods: _are_bound(pods, len(running)))
    members = job("job", 2, {GPU_WHOLE: 8})
    for member in members:
        member["spec"]["priorityClassName"] = "patient"
    control_plane.add_pods(members)
    control_plane.pods.wait(lambda pods: all(why(pods, f"job-{n}") for n in range(2)))
    late = [f"late-{n}" for n in range(12)]
    control_plane.add_pods(pod(name, {GPU_WHOLE: 2}) for name in late)
    control_plane.pods.wait(lambda pods: all(why(pods, name) for name in late))
    random.Random(1).shuffle(running)
    while running:
        control_plane.delete_pods([running.pop()])
        control_plane.pods.wait(lambda pods: sum(name.startswith("old-") for name in pods) == len(running))
    names = {f"job-{n}" for n in range(2)}
    found = control_plane.pods.wait(lambda pods: sum(map(_is_bound, pods.values())) == 2 + 8)
    assert names <= {name for name, made in found.items() if _is_bound(made)}
    assert allocations.problems() == []


def test_a_job_that_has_waited_for_too_long_keeps_nodes_although_kube_scheduler_does_not_ask_about_it(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
) -> None:
    """It lacks CPU, which kube-scheduler counts by itself. GPUs are free for pods that come later."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    make_replica("a", "--job-patience", "2")
    old = control_plane.add_pods(pod(f"old-{n}", {GPU_WHOLE: 1, "cpu": 40}) for n in range(2))
    control_plane.pods.wait(lambda pods: _are_bound(pods, 2))
    members = control_plane.add_pods(job("job", 2, {GPU_WHOLE: 2, "cpu": 40}))
    control_plane.pods.wait(lambda pods: all("Insufficient cpu" in why(pods, name) for name in members))
    late = _first_that_waits(control_plane, "node(s) were kept for job job, which comes first")
    control_plane.delete_pods(old)
    control_plane.pods.wait(lambda pods: pods.keys() == {*members, late} and _are_bound(pods, 3))
    assert allocations.problems() == []


def _first_that_waits(control_plane: ControlPlane, reason: str) -> str:
    """Create small pods one after another until one waits for this reason. Those that get a node are deleted."""
    deadline = time.monotonic() + WAIT_S
    for number in itertools.count():
        assert time.monotonic() < deadline, f"{number} pods got a node, and none waited: {reason}"
        (name,) = control_plane.add_pods([pod(f"late-{number}", {GPU_WHOLE: 1})])
        pods = control_plane.pods.wait(partial(_is_bound_or_says, name, reason))
        if not _is_bound(pods[name]):
            return name
        control_plane.delete_pods([name])
        control_plane.pods.wait(partial(_is_gone, name))
    raise AssertionError("unreachable")


def _is_gone(name: str, pods: Mapping[str, Json]) -> bool:
    return name not in pods


def _is_bound_or_says(name: str, reason: str, pods: Mapping[str, Json]) -> bool:
    return name in pods and (_is_bound(pods[name]) or reason in why(pods, name))


@pytest.mark.usefixtures("replica")
def test_the_second_job_of_a_name_starts_whole_when_the_first_is_gone(
    control_plane: ControlPlane, allocations: Allocations
) -> None:
    first, second = (
        job("twin", 4, {GPU_WHOLE: 8}, pods=pods, node_selector={"zone": "few"}) for pods in ("first", "second")
    )
    control_plane.add_pods([*first, *second])
    found = control_plane.pods.wait(
        lambda pods: (
            len(pods) == 8
            and _bound(pods) == {"twin": 4}
            and all(_is_bound(pod) or why(pods, name) for name, pod in pods.items())
        ),
    )
    control_plane.delete_pods(name for name, pod in found.items() if _is_bound(pod))
    control_plane.pods.wait(lambda pods: len(pods) == 4 and _bound(pods) == {"twin": 4})
    assert allocations.problems() == []


@pytest.mark.usefixtures("replica")
def test_a_job_that_is_created_again_does_not_start_beside_its_former_pods(
    control_plane: ControlPlane, allocations: Allocations
) -> None:
    """The former pods are being deleted and stay, as kubelet's do until their processes have ended."""
    former = job("job", 2, {GPU_WHOLE: 8}, pods="former", finalizers=["gpuagent.test/stays"])
    control_plane.add_pods(former)
    control_plane.pods.wait(lambda pods: _bound(pods) == {"job": 2})
    control_plane.delete_pods(pod["metadata"]["name"] for pod in former)
    first, second = job("job", 2, {GPU_WHOLE: 8}, pods="new")
    control_plane.add_pods([first])
    control_plane.pods.wait(lambda pods: "1 of 2 pods are there" in why(pods, "new-0"))
    control_plane.add_pods([second])
    control_plane.pods.wait(lambda pods: _bound(pods) == {"job": 4})
    assert allocations.faults == []
    for deleted in former:
        control_plane.change_pod(deleted["metadata"]["name"], {"metadata": {"finalizers": None}})


_SELECTOR: Json = {"labelSelector": {"matchLabels": {JOB_LABEL: "job"}}}
_APART: Json = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [_SELECTOR | {"topologyKey": "kubernetes.io/hostname"}]
        }
    }
}
_EVEN: Json = {
    "topologySpreadConstraints": [
        _SELECTOR | {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    ]
}


@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize(("pods", "nodes"), [(8, 8), (16, 16), (8, 200), (16, 200)])
@pytest.mark.parametrize(
    ("rules", "limits"),
    [(_APART, {}), (_EVEN, {}), (_APART | _EVEN, {}), ({}, {"memory": "300Gi"})],
    ids=["apart", "even", "apart and even", "RAM"],
)
def test_a_job_starts_at_once_whatever_kube_scheduler_checks_for_its_pods(  # noqa: PLR0913 (by name)
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    nodes: int,
    pods: int,
    rules: Json,
    limits: Mapping[str, str],
) -> None:
    """On as many nodes as it has pods, each of these needs a node for itself, except those that are spread over zones."""
    allocations = make_allocations(whole_node(f"node-{n}", zone=f"zone-{n % 4}") for n in range(nodes))
    members = job("job", pods, {GPU_WHOLE: 1, **limits})
    for member in members:
        member["spec"] |= rules
    *first, last = members
    created = control_plane.add_pods(first)
    control_plane.pods.wait(lambda found: all("pods are there" in why(found, name) for name in created))
    began = time.monotonic()
    control_plane.add_pods([last])
    control_plane.pods.wait(lambda found: _bound(found) == {"job": pods})
    print(f"{pods} pods on {nodes} nodes started {time.monotonic() - began:.1f} s after the last")
    assert allocations.problems() == []


@pytest.mark.usefixtures("replica")
def test_a_job_starts_in_one_zone_if_all_of_its_pods_have_to_be_near_each_other(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
) -> None:
    """As each of them matches its own affinity, kube-scheduler asks about each before another has a node."""
    allocations = make_allocations(whole_node(f"node-{n}", zone=f"zone-{n % 2}") for n in range(4))
    members = job("job", 4, {GPU_WHOLE: 4})
    near = {"requiredDuringSchedulingIgnoredDuringExecution": [_SELECTOR | {"topologyKey": "zone"}]}
    for member in members:
        member["spec"]["affinity"] = {"podAffinity": near}
    control_plane.add_pods(members)
    found = control_plane.pods.wait(lambda pods: _bound(pods) == {"job": 4})
    zones = {int(pod["spec"]["nodeName"].removeprefix("node-")) % 2 for pod in found.values()}
    assert len(zones) == 1
    assert allocations.problems() == []


@pytest.mark.usefixtures("replica")
def test_workers_that_have_to_be_near_their_leader_start_with_it(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
) -> None:
    """kube-scheduler accepts a worker only when the leader, whose label the worker does not have, is bound."""
    allocations = make_allocations(whole_node(f"node-{n}", zone=f"zone-{n % 2}") for n in range(4))
    leader, *workers = job("job", 4, {GPU_WHOLE: 4})
    leader["metadata"]["labels"]["role"] = "leader"
    term = {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "zone"}
    for worker in workers:
        worker["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    # Without the leader, no worker may start.
    control_plane.add_pods(workers)
    control_plane.pods.wait(lambda pods: len(pods) == 3 and all(why(pods, name) for name in pods))
    control_plane.add_pods([leader])
    found = control_plane.pods.wait(lambda pods: _bound(pods) == {"job": 4})
    zones = {int(pod["spec"]["nodeName"].removeprefix("node-")) % 2 for pod in found.values()}
    assert len(zones) == 1
    assert allocations.problems() == []


def _whole(pods: Mapping[str, Json]) -> int:
    return sum(bound == _REPLICAS for bound in _bound(pods).values())


def _bound(pods: Mapping[str, Json]) -> Counter[str]:
    """Job to how many of its pods are bound; without those that have none."""
    return Counter(_job(pod) for pod in pods.values() if _is_bound(pod))


def _is_bound(pod: Json) -> bool:
    return "nodeName" in pod["spec"]


def _job(pod: Json) -> str:
    return str(pod["metadata"]["labels"][JOB_LABEL])


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize("full", [2, 1])
def test_a_job_of_higher_priority_evicts_pods_on_each_node_that_is_full(
    control_plane: ControlPlane, make_allocations: Callable[[Iterable[Json]], Allocations], full: int
) -> None:
    """kube-scheduler asks whom to evict before it writes that a pod has no room, and not again by itself."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    low = [pod(f"low-{n}", {GPU_WHOLE: 8}) for n in range(full)]
    _evict_for_a_job(control_plane, low, {GPU_WHOLE: 8}, count=2)
    assert allocations.problems() == []


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_of_higher_priority_evicts_pods_where_each_of_its_pods_fits_alone(
    control_plane: ControlPlane, make_allocations: Callable[[Iterable[Json]], Allocations], nodes: int
) -> None:
    """kube-scheduler evicts no pod on a node that has room for the pod which it tries."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(nodes))
    low: list[Json] = []
    for number in range(nodes):
        selector = {"kubernetes.io/hostname": f"node-{number}"}
        low.append(pod(f"low-{number}", {GPU_WHOLE: 4}, nodeSelector=selector))
    _evict_for_a_job(control_plane, low, {GPU_WHOLE: 4}, count=2 * nodes)
    assert allocations.problems() == []


def _evict_for_a_job(control_plane: ControlPlane, low: list[Json], each: dict[str, int], count: int) -> None:
    """Pods of low priority run, and are gone once a job of higher priority has started."""
    control_plane.add_priority_class("high", 1000)
    control_plane.add_pods(low)
    control_plane.pods.wait(lambda pods: _are_bound(pods, len(low)))
    members = job("job", count, each)
    for member in members:
        member["spec"]["priorityClassName"] = "high"
    control_plane.add_pods(members)
    names = {f"job-{n}" for n in range(count)}
    # A slow kube-scheduler may let the first attempt pass by. Then the next one comes.
    control_plane.pods.wait(lambda pods: pods.keys() == names and _are_bound(pods, count), AGAIN_S + WAIT_S)


def _are_bound(pods: Mapping[str, Json], count: int) -> bool:
    """Whether so many pods are there, all of them on nodes."""
    return len(pods) == count and all(map(_is_bound, pods.values()))
