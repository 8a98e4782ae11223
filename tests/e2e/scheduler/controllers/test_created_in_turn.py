"""JobSet and LeaderWorkerSet create some pods only when others run. A job of all of them would wait for ever."""

from collections.abc import Callable, Iterable, Mapping

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.controllers.controller import Controller
from tests.e2e.scheduler.controllers.workloads import template
from tests.e2e.scheduler.gpu_allocations import OF_ALL_GROUPS, Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.replica import Replica

_FIRST = {"name": "first", "status": "Ready"}
_IN_ORDER = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
_LWS = "leaderworkerset.sigs.k8s.io/"
_LEADER_READY = {"startupPolicy": "LeaderReady"}


@pytest.fixture(scope="module")
def jobset(start_controller: Callable[..., Controller]) -> Controller:
    return start_controller("jobset")


@pytest.fixture(scope="module")
def leaderworkerset(start_controller: Callable[..., Controller]) -> Controller:
    return start_controller("lws")


@pytest.fixture
def starts(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Callable[[Iterable[Json]], None],
) -> Callable[[Json, int], Mapping[str, Json]]:
    """Creates an object on two nodes of 8 GPUs in two zones, and waits until all of its pods are bound."""

    def wait(manifest: Json, count: int) -> Mapping[str, Json]:
        allocations = make_allocations(whole_node(f"node-{zone}", zone=zone) for zone in ("east", "west"))
        make_replica("a")
        create([manifest])
        pods = control_plane.pods.wait(lambda pods: len(_bound(pods)) == count)
        assert allocations.problems() == []
        return pods

    return wait


@pytest.mark.usefixtures("jobset")
@pytest.mark.parametrize(
    ("spec", "later", "annotations"),
    [
        (_IN_ORDER, {}, {}),
        ({}, {"dependsOn": [_FIRST]}, {}),
        ({}, {}, {"alpha.jobset.sigs.k8s.io/exclusive-topology": "zone"}),
    ],
    ids=["in order", "depends on", "exclusive topology"],
)
def test_a_jobset_starts(
    starts: Callable[[Json, int], Mapping[str, Json]],
    spec: Json,
    later: Json,
    annotations: Json,
) -> None:
    """The first Job has two pods of 2 GPUs, and the second one two of 4."""
    jobs = [_job("first", 2), _job("second", 4) | later]
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "default", "annotations": annotations},
        "spec": {"replicatedJobs": jobs, **spec},
    }
    starts(manifest, 4)


@pytest.mark.usefixtures("leaderworkerset")
@pytest.mark.parametrize(
    ("spec", "annotations", "labels"),
    [
        (_LEADER_READY, {}, {}),
        ({}, {"leaderworkerset.sigs.k8s.io/exclusive-topology": "zone"}, {}),
        ({}, {}, {JOB_LABEL: "serve", REPLICAS_LABEL: "2"}),
    ],
    ids=["leader ready", "exclusive topology", "labels in the template"],
)
def test_a_leaderworkerset_starts(
    starts: Callable[[Json, int], Mapping[str, Json]],
    spec: Json,
    annotations: Json,
    labels: Mapping[str, str],
) -> None:
    """There are two groups of two pods of 4 GPUs."""
    starts(_leader_worker_set(labels, spec, annotations), 4)


@pytest.mark.usefixtures("leaderworkerset")
@pytest.mark.parametrize("role", ["leaderTemplate", "workerTemplate"])
def test_a_leaderworkerset_starts_with_labels_in_one_of_its_templates(
    starts: Callable[[Json, int], Mapping[str, Json]],
    role: str,
) -> None:
    """Its leaders are a job of two pods, and those of its workers that have the labels as well."""
    manifest = _leader_worker_set({}, {}, {})
    templates = manifest["spec"]["leaderWorkerTemplate"]
    templates["leaderTemplate"] = templates["workerTemplate"]
    labels = {JOB_LABEL: f"{OF_ALL_GROUPS}{role.lower()}", REPLICAS_LABEL: "2"}
    templates[role] = templates[role] | {"metadata": {"labels": templates[role]["metadata"]["labels"] | labels}}
    starts(manifest, 4)


@pytest.mark.usefixtures("leaderworkerset")
def test_each_subgroup_of_a_leaderworkerset_starts_in_a_zone_of_its_own(
    starts: Callable[[Json, int], Mapping[str, Json]],
) -> None:
    """Its webhook writes affinity and anti-affinity to subgroups. One group has two of them, of two pods each."""
    annotations = {"leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": "zone"}
    manifest = _leader_worker_set({}, {}, annotations)
    manifest["spec"]["replicas"] = 1
    manifest["spec"]["leaderWorkerTemplate"] |= {"size": 4, "subGroupPolicy": {"subGroupSize": 2}}
    pods = starts(manifest, 4)
    on = {(_label(pod, "subgroup-index"), pod["spec"]["nodeName"]) for pod in pods.values()}
    assert len(on) == len({node for _, node in on}) == 2


@pytest.mark.usefixtures("leaderworkerset")
def test_workers_of_a_leaderworkerset_start_near_their_leader(
    starts: Callable[[Json, int], Mapping[str, Json]],
) -> None:
    """The affinity selects the leader alone. kube-scheduler accepts no worker before the leader is bound."""
    manifest = _leader_worker_set({}, {}, {})
    manifest["spec"]["replicas"] = 1
    templates = manifest["spec"]["leaderWorkerTemplate"]
    templates["leaderTemplate"] = templates["workerTemplate"]
    worker = templates["workerTemplate"]
    leader = {_LWS + "name": "serve", _LWS + "worker-index": "0"}
    term = {"labelSelector": {"matchLabels": leader}, "topologyKey": "zone"}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    templates["workerTemplate"] = worker | {"spec": worker["spec"] | {"affinity": near}}
    pods = starts(manifest, 2)
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 1


def _label(pod: Json, name: str) -> str:
    return str(pod["metadata"]["labels"][_LWS + name])


def _leader_worker_set(labels: Mapping[str, str], spec: Json, annotations: Json) -> Json:
    worker = template({GPU_WHOLE: 4}, labels)
    worker["spec"]["restartPolicy"] = "Always"
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "namespace": "default", "annotations": annotations},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker}, **spec},
    }


def _job(name: str, gpus: int) -> Json:
    spec = {"parallelism": 2, "completions": 2, "template": template({GPU_WHOLE: gpus})}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _bound(pods: Mapping[str, Json]) -> set[str]:
    return {name for name, found in pods.items() if "nodeName" in found["spec"]}
