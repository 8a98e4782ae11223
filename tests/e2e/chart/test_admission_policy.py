"""What an agent may write, and what the real API server refuses it, whatever RBAC allows.

Two agents with real tokens, bound to their pods as kubelet asks for them: one on the node, one on another node. Both
have every right that RBAC can give on the kinds they write, so that each refusal here is the policies'.
"""

import itertools
import time
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from gpuagent.domain.dra.unprepared import PREPARE_AGAIN_ANNOTATION
from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION
from gpuagent.kube.api.client import Client
from gpuagent.kube.write.event_sender import MESSAGE_CHARS, EventSender, Involved
from tests.e2e.chart.agents import MAPS, MERGE, NODE, OTHER, TAINT, Agents, patch
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster, pod_manifest
from tests.e2e.stolen_token import tries

STRATEGIC = "application/strategic-merge-patch+json"
STATUS = f"{NODE}/status"
NOT_THEIRS = "may change its own node only"

Json = dict[str, Any]


def condition(kind: str) -> Json:
    now = "2026-01-01T00:00:00Z"
    values = {
        "status": "True",
        "reason": "Test",
        "message": "test",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [{"type": kind, **values}]}}


LABELS: Json = {
    "metadata": {"labels": {"aliyun.accelerator/nvidia_count": "8", "aliyun.accelerator/nvidia_name": None}}
}
GPUS: Json = {"metadata": {"annotations": {NODE_GPUS_ANNOTATION: "{}", HELD_GPUS_ANNOTATION: "{}"}}}
COUNT: Json = {"status": {"capacity": {"aliyun.com/gpu-count": "8"}, "allocatable": {"aliyun.com/gpu-count": "8"}}}
ITS_OWN = [
    pytest.param(NODE, LABELS, MERGE, id="labels"),
    pytest.param(NODE, GPUS, MERGE, id="annotation"),
    pytest.param(STATUS, COUNT, STRATEGIC, id="amounts"),
    pytest.param(STATUS, condition("GPUAgentReady"), STRATEGIC, id="condition"),
]


@pytest.mark.parametrize("what", ["nodes", "pods", "events", "configmaps"])
def test_the_api_server_finds_the_policies_expressions_well_typed(cluster: Cluster, agents: Agents, what: str) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    seen = cluster.client.wait(path, f"gpuagent-{what}", lambda one: "typeChecking" in (one or {}).get("status", {}))
    assert (seen or {})["status"]["typeChecking"] == {}


@tries(
    "It can set the labels, the annotation, the amount and the condition of its own Node, with any message.",
)
@pytest.mark.parametrize(("path", "body", "kind"), ITS_OWN)
def test_an_agent_writes_its_own_node(cluster: Cluster, agents: Agents, path: str, body: Json, kind: str) -> None:
    assert patch(cluster, agents.ours, path, body, kind)[0] == 200


@tries(
    "It cannot change another Node, or anything else of its own Node.",
)
@pytest.mark.parametrize(("path", "body", "kind"), ITS_OWN)
def test_another_nodes_agent_is_refused(cluster: Cluster, agents: Agents, path: str, body: Json, kind: str) -> None:
    status, message = patch(cluster, agents.others, path, body, kind)
    assert status in (403, 422), message
    assert f'the agent of node "{OTHER}" {NOT_THEIRS}, not "{NODE_NAME}"' in message
    mine = path.replace(NODE_NAME, OTHER)
    assert patch(cluster, agents.others, mine, body, kind)[0] == 200


@tries(
    "It cannot write at all with a token that kubelet did not mount, because such a token names no node.",
)
@pytest.mark.parametrize(("path", "body", "kind"), ITS_OWN)
def test_a_token_that_names_no_node_is_refused(
    cluster: Cluster, agents: Agents, path: str, body: Json, kind: str
) -> None:
    status, message = patch(cluster, agents.unbound, path, body, kind)
    assert status in (403, 422), message
    assert "names no node: it has to be that of the agent's pod" in message


@tries(
    "It cannot change another Node, or anything else of its own Node.",
)
@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            NODE,
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
            "the labels aliyun.accelerator",
        ),
        (NODE, {"metadata": {"labels": {"ack.node.gpu.schedule": "share"}}}, "the labels aliyun.accelerator"),
        (NODE, {"metadata": {"labels": {"kubernetes.io/hostname": None}}}, "the labels aliyun.accelerator"),
        (STATUS, {"metadata": {"labels": {"kubernetes.io/hostname": "x"}}}, "the labels aliyun.accelerator"),
        (NODE, {"metadata": {"annotations": {"a": "b"}}}, "only the annotations gpuagent.io/gpus"),
        (NODE, {"metadata": {"annotations": {NODE_GPUS_ANNOTATION: "x" * 4097}}}, "at most 4096 characters"),
        (NODE, {"metadata": {"annotations": {HELD_GPUS_ANNOTATION: "x" * 32769}}}, "32768"),
        (NODE, {"metadata": {"finalizers": ["a/b"]}}, "finalizers, owners and generateName"),
        (NODE, {"metadata": {"generateName": "junk"}}, "finalizers, owners and generateName"),
        (NODE, {"spec": {"unschedulable": True}}, "spec"),
        (NODE, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "taint"),
        (STATUS, {"status": {"capacity": {"cpu": "1000"}}}, "aliyun.com/gpu-count only"),
        (STATUS, {"status": {"allocatable": {"aliyun.com/gpu-mem": "1000"}}}, "aliyun.com/gpu-count only"),
        (STATUS, {"status": {"capacity": {"memory": None}}}, "aliyun.com/gpu-count only"),
        (STATUS, {"status": {"capacity": None}}, "aliyun.com/gpu-count only"),
        (STATUS, {"status": {"addresses": []}}, "what kubelet says"),
        (STATUS, {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}, "what kubelet says"),
        (STATUS, {"status": {"nodeInfo": {"kubeletVersion": "v9"}}}, "what kubelet says"),
        (STATUS, {"status": {"conditions": []}}, "GPUAgentReady only"),
    ],
)
def test_what_is_not_the_agents_on_its_own_node_is_refused(
    cluster: Cluster, agents: Agents, path: str, body: Json, expected: str
) -> None:
    status, message = patch(cluster, agents.ours, path, body)
    assert status in (403, 422), message
    assert "ValidatingAdmissionPolicy 'gpuagent-nodes'" in message
    assert expected in message


def test_another_condition_is_refused(cluster: Cluster, agents: Agents) -> None:
    status, message = patch(cluster, agents.ours, STATUS, condition("Ready"), STRATEGIC)
    assert status in (403, 422)
    assert "GPUAgentReady only" in message


def test_a_node_is_neither_deleted_nor_made(cluster: Cluster, agents: Agents) -> None:
    for path, method, body in (
        (NODE, "DELETE", None),
        ("/api/v1/nodes", "POST", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME + "x"}}),
    ):
        status, answer = cluster.api(method, path, body, token=agents.ours)
        assert (status, "ValidatingAdmissionPolicy 'gpuagent-nodes'" in answer["message"]) == (422, True), answer


def test_the_startup_taint_alone_comes_off(cluster: Cluster, agents: Agents) -> None:
    keep = {"key": "keep", "effect": "PreferNoSchedule"}
    ours = {"key": TAINT, "effect": "PreferNoSchedule"}
    cluster.client.expect("PATCH", NODE, {"spec": {"taints": [keep, ours]}}, MERGE)
    try:
        for wrong in ([ours], [keep, ours, {"key": "new", "effect": "NoSchedule"}], []):
            status, message = patch(cluster, agents.ours, NODE, {"spec": {"taints": wrong}})
            assert (status, f"take off the taint {TAINT} only" in message) == (422, True), message
        assert patch(cluster, agents.ours, NODE, {"spec": {"taints": [keep]}})[0] == 200
        assert patch(cluster, agents.ours, NODE, {"spec": {"taints": [keep, ours]}})[0] == 422, "put on again"
    finally:
        cluster.client.expect("PATCH", NODE, {"spec": {"taints": None}}, MERGE)


# -- ConfigMaps ------------------------------------------------------------------------------------------------------


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"gpus": "1"}}


@tries(
    "It can write its own two ConfigMaps, and the ResourceSlice of its own node.",
    "It cannot write the ConfigMap or ResourceSlice of another agent, or any other one.",
)
@pytest.mark.parametrize("name", ["unhealthy-gpu-{}", "{}-gputopo-report"])
def test_reports_are_each_agents_own(cluster: Cluster, agents: Agents, name: str) -> None:
    mine, body = f"{MAPS}/{name.format(NODE_NAME)}", config_map(name.format(NODE_NAME))
    cluster.api("DELETE", mine)  # an agent that ended while a GPU was unhealthy leaves its report, for schedulers
    for agent in (agents.others, agents.unbound):
        assert cluster.api("POST", MAPS, body, token=agent)[0] == 422
    assert cluster.api("POST", MAPS, body, token=agents.ours)[0] == 201
    status, message = patch(cluster, agents.others, mine, {"data": {"gpus": "2"}})
    assert status == 422
    assert (
        f'the agent of node "{OTHER}" may write its own reports only, not ConfigMap "kube-system/{name}"'.format(
            NODE_NAME
        )
        in message
    )
    assert cluster.api("DELETE", mine, token=agents.others)[0] == 422
    assert patch(cluster, agents.ours, mine, {"data": {"gpus": "2"}})[0] == 200
    assert cluster.api("DELETE", mine, token=agents.ours)[0] == 200
    theirs = config_map(name.format(OTHER))
    assert cluster.api("POST", MAPS, theirs, token=agents.others)[0] == 201
    assert cluster.api("DELETE", f"{MAPS}/{theirs['metadata']['name']}", token=agents.others)[0] == 200


def test_other_config_maps_are_nobodys(cluster: Cluster, agents: Agents) -> None:
    for namespace, name in (("kube-system", "coredns"), ("default", f"unhealthy-gpu-{NODE_NAME}")):
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        assert cluster.api("POST", path, config_map(name), token=agents.ours)[0] == 422
    cluster.apply(config_map("coredns") | {"metadata": {"name": "coredns", "namespace": "kube-system"}})
    try:
        assert patch(cluster, agents.ours, f"{MAPS}/coredns", {"data": {"a": "b"}})[0] == 422
        assert cluster.api("DELETE", f"{MAPS}/coredns", token=agents.ours)[0] == 422
    finally:
        cluster.api("DELETE", f"{MAPS}/coredns")


# -- Events ----------------------------------------------------------------------------------------------------------


def event(node: str, about: Json, **other: Any) -> Json:
    named = {"source": {"component": "gpuagent", "host": node}, "reportingComponent": "gpuagent"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"test.{time.time_ns():x}", "namespace": about.get("namespace", "default")},
        "involvedObject": {"apiVersion": "v1", **about},
        "reason": "GPURefused",
        "message": "test",
        "type": "Normal",
        **named,
        "reportingInstance": node,
        **other,
    }


THE_NODE, A_POD = (
    {"kind": "Node", "name": NODE_NAME, "uid": NODE_NAME},
    {"kind": "Pod", "name": "p", "namespace": "default"},
)
A_CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "namespace": "default"}
EVENTS = "/api/v1/namespaces/default/events"
JUNK: tuple[Json, ...] = tuple(
    {"name": f"junk.{n}", "namespace": "default", **more}
    for n, more in enumerate[Json](
        (
            {"labels": {"a": "b"}},
            {"annotations": {"a": "b" * 100_000}},
            {"finalizers": ["a/b"]},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]},
            {"generateName": "junk"},
        )
    )
)
"""Metadata of Events, each with a field that the agent never sets."""


@tries(
    "It can send [Events](#events) about any pod.",
)
def test_events_are_sent_and_counted_in_the_agents_own_name(cluster: Cluster, agents: Agents) -> None:
    for body in (event(NODE_NAME, THE_NODE), event(NODE_NAME, A_POD)):
        assert cluster.api("POST", EVENTS, body, token=agents.ours)[0] == 201
        path = f"{EVENTS}/{body['metadata']['name']}"
        assert patch(cluster, agents.ours, path, {"count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"})[0] == 200
        for other in (agents.others, agents.unbound):
            assert patch(cluster, other, path, {"count": 3})[0] == 422
        assert cluster.api("DELETE", path, token=agents.ours)[0] == 422


@tries(
    "It cannot send an Event in another's name, with a reason of others, or about other objects.",
)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (event(OTHER, A_POD), "in its own name only"),
        (event(NODE_NAME, A_POD, reportingInstance=OTHER), "in its own name only"),
        (event(NODE_NAME, A_POD, reportingComponent="kubelet"), "in its own name only"),
        (event(NODE_NAME, A_POD, source={"component": "default-scheduler", "host": NODE_NAME}), "in its own name only"),
        (event(NODE_NAME, {"kind": "node", "name": OTHER}), "about pods only"),
        (event(NODE_NAME, {"kind": "Node", "name": OTHER}), f'about node "{NODE_NAME}" and about pods only'),
        (event(NODE_NAME, {"kind": "Secret", "name": "s", "namespace": "default"}), "about pods only"),
        (event(NODE_NAME, A_CONTROLLER), "about pods only"),
        (event(NODE_NAME, A_POD, reason="Evicted"), "reasons of its own list only"),
        (event(NODE_NAME, A_POD, reason=""), "reasons of its own list only"),
        (event(NODE_NAME, A_POD, message="x" * 1025), "at most 1024 characters"),
        (event(NODE_NAME, A_POD, type="Alarm"), "at most 1024 characters"),
        (event(NODE_NAME, {**A_POD, "uid": "x" * 254}), "at most 253"),
        (event(NODE_NAME, {**A_POD, "name": "x" * 254}), "at most 253"),
        (event(NODE_NAME, {**A_POD, "apiVersion": "x" * 254}), "at most 253"),
        *((event(NODE_NAME, A_POD) | {"metadata": meta}, "fields of an Event") for meta in JUNK),
        (event(NODE_NAME, A_POD, action="Evict"), "fields of an Event"),
        (event(NODE_NAME, A_POD, related={"kind": "Node", "name": "n"}), "fields of an Event"),
        (event(NODE_NAME, {**A_POD, "fieldPath": "x" * 100_000}), "fields of an Event"),
        (event(NODE_NAME, {**A_POD, "resourceVersion": "1" * 100_000}), "fields of an Event"),
    ],
)
def test_events_in_anothers_name_or_about_others_are_refused(
    cluster: Cluster, agents: Agents, body: Json, expected: str
) -> None:
    status, answer = cluster.api("POST", EVENTS, body, token=agents.ours)
    assert status == 422
    assert expected in answer["message"]


class Sender(Client):
    """What the agent's own log of Events needs of a client, with an agent's token."""

    def __init__(self, cluster: Cluster, token: str) -> None:
        self._cluster, self._token = cluster, token

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        status, answer = self._cluster.api("POST", path, dict(body), token=self._token)
        assert status == 201, answer
        return dict(answer)

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE) -> Json:
        status, answer = self._cluster.api("PATCH", path, dict(body), content_type, self._token)
        assert status == 200, answer
        return dict(answer)


def test_every_event_of_the_agent_is_taken(cluster: Cluster, agents: Agents) -> None:
    """As the agent itself makes them: each reason on a pod and on the node, with the longest message, and counted."""
    log = EventSender(Sender(cluster, agents.ours), NODE_NAME, count_gap_s=0.0)
    log.start()
    kinds = (Involved.pod("default", "p" * 253, "u" * 36), Involved.node(NODE_NAME))
    sent = 0
    for kind, reason in itertools.product(kinds, get_args(EventReason)):
        for _ in range(2):  # the second is a count on the first
            log.add(kind, "Warning", reason, "\N{REPLACEMENT CHARACTER}" * (2 * MESSAGE_CHARS))
            assert log.flush(WAIT_S)
            sent += 1
    assert (log.counts().sent, log.counts().refused) == (sent, 0)
    log.stop(WAIT_S)


def test_what_an_event_says_stays_bounded(cluster: Cluster, agents: Agents) -> None:
    body = event(NODE_NAME, A_POD)
    assert cluster.api("POST", EVENTS, body, token=agents.ours)[0] == 201
    path = f"{EVENTS}/{body['metadata']['name']}"
    for junk in ({"message": "x" * (MESSAGE_CHARS + 1)}, {"reason": "Evicted"}, {"metadata": {"finalizers": ["a/b"]}}):
        assert patch(cluster, agents.ours, path, junk)[0] == 422, junk


# -- pods ------------------------------------------------------------------------------------------------------------


def failed(cluster: Cluster, name: str, reason: str) -> str:
    """A pod of the node without a kubelet, as a kubelet leaves it that did not admit it; the path."""
    cluster.create_pod(pod_manifest(name, {}, node=OTHER))
    path = f"/api/v1/namespaces/default/pods/{name}"
    cluster.client.expect("PATCH", f"{path}/status", {"status": {"phase": "Failed", "reason": reason}}, MERGE)
    return path


@tries(
    "It cannot make, bind, evict or delete pods, and cannot change what a pod runs or its status.",
)
def test_pods_are_not_written(cluster: Cluster, agents: Agents) -> None:
    cluster.create_pod(pod_manifest("victim", {}, node=NODE_NAME))
    path = "/api/v1/namespaces/default/pods/victim"
    rejected = failed(cluster, "rejected", "UnexpectedAdmissionError")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim", "namespace": "default"}}
    try:
        assert patch(cluster, agents.ours, path, {"metadata": {"annotations": {"a": "b"}}})[0] == 422
        assert patch(cluster, agents.ours, f"{path}/status", {"status": {"phase": "Failed"}})[0] == 422
        assert cluster.api("POST", f"{path}/eviction", eviction, token=agents.ours)[0] == 422
        for agent, pod in ((agents.ours, path), (agents.others, rejected)):
            status, answer = cluster.api("DELETE", pod, token=agent)
            assert (status, "and do nothing else to pods" in answer["message"]) == (422, True), answer
        new = pod_manifest("new", {}, node=NODE_NAME)
        assert cluster.api("POST", "/api/v1/namespaces/default/pods", new, token=agents.ours)[0] == 422
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "victim"}, "target": target}
        assert cluster.api("POST", f"{path}/binding", binding, token=agents.ours)[0] == 422
    finally:
        cluster.delete_pod("victim")
        cluster.api("DELETE", rejected, {"gracePeriodSeconds": 0})


MINE = {
    "scheduler.framework.gpushare.allocation": '{"0":{"1":4}}',
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    "gpuagent.io/decided": "uid",
    LIMIT_STATUS_ANNOTATION: "InForce: main=8",
    PREPARE_AGAIN_ANNOTATION: "1",
}


@tries(
    "It can set the annotations that say which GPUs a pod has, and what became of a resize, on pods of its own node, to up "
    "to 32,768 characters each. It cannot ask for a resize.",
)
def test_pods_of_its_own_node_are_annotated_and_nothing_else_of_them_changes(cluster: Cluster, agents: Agents) -> None:
    manifest = pod_manifest("annotated", {}, node=OTHER, annotations={"kept": "yes"}, labels={"app": "a"})
    cluster.create_pod(manifest)
    path = "/api/v1/namespaces/default/pods/annotated"
    try:
        for agent in (agents.ours, agents.unbound):
            assert patch(cluster, agent, path, {"metadata": {"annotations": MINE}})[0] == 422
        assert patch(cluster, agents.others, path, {"metadata": {"annotations": MINE}})[0] == 200
        for wrong, expected in (
            ({"metadata": {"annotations": {NODE_GPUS_ANNOTATION: "{}"}}}, "only the annotations that say which GPUs"),
            ({"metadata": {"annotations": {LIMIT_ANNOTATION: "main=8"}}}, "only the annotations that say which GPUs"),
            ({"metadata": {"annotations": {"kept": "no"}}}, "only the annotations that say which GPUs"),
            ({"metadata": {"annotations": {"kept": None}}}, "only the annotations that say which GPUs"),
            ({"metadata": {"annotations": {"new": "yes"}}}, "only the annotations that say which GPUs"),
            ({"metadata": {"annotations": dict.fromkeys(MINE)}}, "only the annotations that say which GPUs"),
            ({"metadata": {"labels": {"app": "b"}}}, "a pod's annotations only"),
            ({"metadata": {"finalizers": ["a/b"]}}, "a pod's annotations only"),
            ({"metadata": {"generateName": "junk"}}, "a pod's annotations only"),
            ({"metadata": {"annotations": {next(iter(MINE)): "x" * 32769}}}, "at most 32768 characters"),
            ({"spec": {"activeDeadlineSeconds": 1}}, "a pod's annotations only"),
        ):
            status, message = patch(cluster, agents.others, path, wrong)
            assert (status, expected in message) == (422, True), message
    finally:
        cluster.api("DELETE", path, {"gracePeriodSeconds": 0})


@tries(
    "It can remove `managedFields` of its own Node and of pods of its node.",
)
def test_who_wrote_what_can_be_wiped(cluster: Cluster, agents: Agents) -> None:
    """The policies leave these to the API server, which lets everyone remove them."""
    cluster.create_pod(pod_manifest("wiped", {}, node=OTHER))
    pod = "/api/v1/namespaces/default/pods/wiped"
    try:
        for path, agent in ((pod, agents.others), (f"/api/v1/nodes/{OTHER}", agents.others)):
            wiped: Json = {"metadata": {"managedFields": [{}]}}
            status, message = patch(cluster, agent, path, wiped)
            assert status == 200, message
            assert "managedFields" not in cluster.client.expect("GET", path)["metadata"]
    finally:
        cluster.api("DELETE", pod, {"gracePeriodSeconds": 0})
