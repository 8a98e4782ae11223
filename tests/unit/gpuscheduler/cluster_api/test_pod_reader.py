"""A pod is read as it is now, whatever was read before and whichever parts of it are another."""

import copy
import json
import random
from itertools import product

import pytest

from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_ASSUMED,
    V1_GPU,
    V1_UNITS,
)
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION
from gpuscheduler.cluster_api import pod_reader
from gpuscheduler.cluster_api.pod_reader import PodReader
from gpuscheduler.core import pod_facts as facts_module
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, pod_facts
from tests.unit.gpuscheduler.core.api_objects import container, pod_object

STEPS = 1000
UID = "uid-of-it"
IN_USE = {"name": "c", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2"}}
RUNNING = {"phase": "Running", "containerStatuses": [IN_USE]}
TERM = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
TERMS = [{"matchExpressions": [{"key": "aliyun.accelerator/nvidia_name", "operator": "In", "values": ["H100"]}]}]
AFFINITY = {
    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]},
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}},
}
SHARE = {
    MEMORY_ANNOTATION: '{"0":{"1":4}}',
    DECIDED_ANNOTATION: UID,
    V1_GPU: "1",
    V1_UNITS: "4",
    V1_ASSUMED: "1767225600000000001",
    V1_ASSIGNED: "false",
}
TEXTS = ["", "x", "1", "4", "2", UID]
NUMBERS = [0, 1, True]
NESTED = [[], {}, {"name": "x"}, [{"name": "x"}]]
LEAVES = [None, *TEXTS, *NUMBERS, *NESTED]


def objects():
    """Pods of all kinds, with all that is read of them."""
    share = pod_object("share", mem=4, uid=UID, on="n1", annotations=SHARE, owner="o")
    core = pod_object("core", mem=4, core=10, annotations={CORE_ANNOTATION: '{"0":{"1":10}}'} | SHARE, uid=UID)
    whole = pod_object("whole", whole=2, uid=UID, on="n1", annotations={GROUP_ANNOTATION: "1,3", "x": "y"})
    several = pod_object("several", container("c", mem=4), container("d", mem=2), gpu_count=2, gates=["a.b/c"])
    job = pod_object("job", whole=1, labels={"gpu-topology": "j", "gpu-topology-replica": "2"})
    job["metadata"]["annotations"] = {COMMIT_ANNOTATION: "plan"}
    job["spec"] |= {"affinity": AFFINITY, "nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]}
    job["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "Insufficient x"}]
    service = pod_object("service", count=0, labels={"app": "a"}, on="n2")
    service["spec"] |= {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}], "preemptionPolicy": "Never"}
    service["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    running = copy.deepcopy(service) | {"status": RUNNING}
    claiming = pod_object("claiming", count=0)
    claiming["spec"]["resourceClaims"] = [{"name": "a", "resourceClaimName": "c"}, {"name": "b"}]
    claiming["status"]["resourceClaimStatuses"] = [{"name": "b", "resourceClaimName": "made"}]
    grouped = pod_object("grouped", whole=1, labels={"kueue.x-k8s.io/pod-group-name": "g"})
    grouped["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    grouped["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    return [share, core, whole, several, job, service, running, claiming, grouped]


def places(value, path=()):
    """All values inside a JSON value, by the keys that lead to them."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def edit(pod, rng, others):
    """Change, remove or add one value anywhere in a pod; some have the value that another pod has there."""
    *path, last = rng.choice(list(places(pod)))
    inside = pod
    for key in path:
        inside = inside[key]
    if rng.random() < 0.2:
        del inside[last]
    elif rng.random() < 0.5:
        inside[last] = copy.deepcopy(rng.choice(LEAVES))
    else:
        part = rng.choice(["metadata", "spec", "status"])
        source = rng.choice(others)
        if isinstance(pod.get(part), dict) and source.get(part):
            key = rng.choice(list(source[part]))
            pod[part][key] = copy.deepcopy(source[part][key])


@pytest.mark.parametrize("seed", range(4))
def test_a_pod_is_read_as_it_is_after_any_change(seed):
    rng = random.Random(seed)
    reader = PodReader()
    originals = objects()
    pods = copy.deepcopy(originals)
    for _ in range(STEPS):
        number = rng.randrange(len(pods))
        edit(pods[number], rng, originals)
        written = json.dumps(pods[number]).encode()
        assert reader.read(written) == pod_facts(pods[number])
        if rng.random() < 0.2 or not pods[number]:
            pods[number] = copy.deepcopy(originals[number])


def readings(monkeypatch):
    """The names of the pods whose spec is parsed from now on."""
    parsed = []
    read = facts_module.pod_template

    def noted(pod):
        parsed.append(pod["metadata"]["name"])
        return read(pod)

    monkeypatch.setattr(pod_reader, "pod_template", noted)
    return parsed


def test_what_changes_while_a_pod_waits_and_is_bound_is_read_without_its_spec(monkeypatch):
    """Its nomination, why it waits, the Binding with a decision, and what kubelet says before it starts."""
    parsed = readings(monkeypatch)
    reader = PodReader()
    pod = pod_object("p", mem=4, uid=UID)
    reader.read(json.dumps(pod).encode())
    pod["metadata"] |= {"resourceVersion": "2", "managedFields": [{"manager": "m"}]}
    pod["status"] |= {"nominatedNodeName": "n1", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    assert reader.read(json.dumps(pod).encode()).nominated == "n1"
    assert parsed == ["p"]
    pod["spec"]["nodeName"] = "n1"
    pod["metadata"]["annotations"] = SHARE
    bound = reader.read(json.dumps(pod).encode())
    assert (bound.node, bound.used) == ("n1", pod_facts(pod).used)
    # On a node, other parts count.
    assert parsed == ["p", "p"]
    pod["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    assert reader.read(json.dumps(pod).encode()).end is facts_module.PodEnd.REFUSED
    assert parsed == ["p", "p"]


def test_pods_of_one_template_are_parsed_once(monkeypatch):
    parsed = readings(monkeypatch)
    reader = PodReader()
    pods = [pod_object(f"p{n}", mem=4, owner="o", created=f"2026-01-01T00:00:0{n}Z") for n in range(5)]
    for pod in pods:
        assert reader.read(json.dumps(pod).encode()) == pod_facts(pod)
    assert parsed == ["p0"]


def test_a_decision_is_read_once_for_the_pods_of_a_template_that_have_the_same_gpus(monkeypatch):
    read = []
    decided_use = facts_module.decided_use

    def noted(pod, request):
        read.append(pod.name.name)
        return decided_use(pod, request)

    monkeypatch.setattr(facts_module, "decided_use", noted)
    reader = PodReader()
    for number in range(5):
        own = SHARE | {DECIDED_ANNOTATION: f"uid-{number}", V1_ASSUMED: f"17672256000000000{number:02}"}
        pod = pod_object(f"p{number}", mem=4, owner="o", uid=f"uid-{number}", on="n1", annotations=own)
        assert reader.read(json.dumps(pod).encode()).used == ((1, Amounts(4, 0)),)
    assert len(read) == 1


@pytest.mark.parametrize(
    "limits", [{"mem": 4}, {"core": 10}, {"mem": 4, "core": 10}], ids=lambda limits: "-".join(limits)
)
def test_a_decision_read_before_is_the_one_that_all_annotations_give(monkeypatch, limits):
    """Whatever of them is absent, wrong, of another pod, or in conflict with the others."""
    reader = PodReader()
    values = {
        MEMORY_ANNOTATION: (None, '{"0":{"1":4}}', '{"0":{"1":5}}', "{", "{}", " " * 300 + '{"0":{"1":4}}', 4),
        CORE_ANNOTATION: (None, '{"0":{"1":10}}', '{"0":{"2":10}}', "", "{"),
        DECIDED_ANNOTATION: (None, UID, "another", 4),
        V1_GPU: (None, "1", "2", "x"),
    }
    for texts in product(*values.values()):
        written = dict(zip(values, texts, strict=True)) | {V1_UNITS: "4", V1_ASSUMED: "1767225600000000001"}
        annotations = {key: text for key, text in written.items() if text is not None} | {V1_ASSIGNED: "false"}
        pod = pod_object("p", container("c", **limits), owner="o", uid=UID, on="n1", annotations=annotations)
        with monkeypatch.context() as patch:
            # No text is short enough to be read for other pods, too.
            patch.setattr(facts_module, "_SHORT_TEXT", -1)
            by_all = pod_facts(pod).used
        assert reader.read(json.dumps(pod).encode()).used == by_all, annotations


def test_the_templates_of_the_latest_texts_are_kept(monkeypatch):
    parsed = readings(monkeypatch)
    monkeypatch.setattr(pod_reader, "MOST_BYTES", 35_000)
    reader = PodReader()
    pods = [pod_object(f"p{n}", labels={"padding": f"{n}" * 10_000}) for n in range(5)]
    texts = [json.dumps(pod).encode() for pod in pods]
    for text in texts:
        reader.read(text)
    for text in reversed(texts):
        reader.read(text)
    assert parsed == ["p0", "p1", "p2", "p3", "p4", "p1", "p0"]
