"""Mode dra's policies on the real API server: slices of an agent's own node only, and claims that name both or neither."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.domain.dra.device_classes import CLASSES
from gpuagent.domain.reconcile.slice_writes import slice_name
from tests.e2e.agent.dra.claims import label_default
from tests.e2e.chart.agents import CLAIMS, MERGE, OTHER, SLICES, Agents, Json, patch, resource_slice
from tests.e2e.cluster import NODE_NAME, Cluster

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
THEIRS = f"{SLICES}/{slice_name(OTHER)}"
"""Slices that last are of the other node: the kubelet of this one deletes those of drivers that have gone."""
EXAMPLES = Path(__file__).parents[3] / "examples" / "claims"


@pytest.mark.parametrize("what", ["resourceslices", "resourceclaims", "resourceclaimtemplates"])
def test_the_api_server_finds_the_expressions_well_typed(cluster: Cluster, agents: Agents, what: str) -> None:
    seen = cluster.client.wait(
        POLICIES, f"gpuagent-{what}", lambda one: "typeChecking" in (one or {}).get("status", {})
    )
    assert (seen or {})["status"]["typeChecking"] == {}


# -- slices ----------------------------------------------------------------------------------------------------------


def create(cluster: Cluster, agent: str, body: Json) -> tuple[int, str]:
    status, answer = cluster.api("POST", SLICES, body, token=agent)
    return status, str(answer.get("message", ""))


def delete(cluster: Cluster, agent: str | None = None) -> int:
    return cluster.api("DELETE", THEIRS, token=agent)[0]


def test_a_slice_is_each_agents_own(cluster: Cluster, agents: Agents) -> None:
    # With another UID, the garbage collector deletes the slice.
    uid = cluster.client.expect("GET", f"/api/v1/nodes/{OTHER}")["metadata"]["uid"]
    body = resource_slice(OTHER)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": uid, "controller": True}
    ]
    more = {"spec": {"devices": [{"name": "gpu-b"}]}}
    for agent in (agents.ours, agents.unbound):
        assert create(cluster, agent, body)[0] == 422
    assert create(cluster, agents.others, body)[0] == 201
    for agent in (agents.ours, agents.unbound):
        assert patch(cluster, agent, THEIRS, more)[0] == 422
        assert delete(cluster, agent) == 422
        assert cluster.api("DELETE", SLICES, token=agent)[0] == 422
    assert patch(cluster, agents.others, THEIRS, more)[0] == 200
    assert delete(cluster, agents.others) == 200
    status, message = create(cluster, agents.ours, body)
    assert (status, f'the agent of node "{NODE_NAME}" may write the ResourceSlice of its own node' in message) == (
        422,
        True,
    )


ELSEWHERE: Json = {"name": OTHER, "generation": 1, "resourceSliceCount": 1}


@pytest.mark.parametrize(
    "changed",
    [
        {"nodeName": OTHER},
        {"driver": "gpu.nvidia.com"},
        {"pool": ELSEWHERE},
        {"nodeName": None, "allNodes": True},
        {"nodeName": None, "perDeviceNodeSelection": True, "devices": [{"name": "gpu-a", "nodeName": OTHER}]},
    ],
)
def test_another_node_driver_or_pool_is_refused(cluster: Cluster, agents: Agents, changed: Json) -> None:
    status, message = create(cluster, agents.ours, resource_slice(NODE_NAME, **changed))
    assert (status, "may write the ResourceSlice of its own node and driver only" in message) == (422, True), message


def test_the_name_of_another_nodes_slice_is_refused(cluster: Cluster, agents: Agents) -> None:
    """The other agent could not make its own."""
    body = resource_slice(NODE_NAME)
    body["metadata"]["name"] = slice_name(OTHER)
    status, message = create(cluster, agents.ours, body)
    assert (status, f'not "{slice_name(OTHER)}"' in message) == (422, True), message


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a/b"]},
        {"generateName": "junk"},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": NODE_NAME, "uid": "u"}]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": "u"}]},
    ],
)
def test_metadata_that_the_agent_never_sets_is_refused(cluster: Cluster, agents: Agents, metadata: Json) -> None:
    body = resource_slice(NODE_NAME)
    body["metadata"] |= metadata
    status, message = create(cluster, agents.ours, body)
    assert (status, "no other metadata" in message) == (422, True), message


def test_an_agent_may_write_a_slice_that_an_operator_has_annotated(cluster: Cluster, agents: Agents) -> None:
    assert create(cluster, agents.others, resource_slice(OTHER))[0] == 201
    try:
        note = {"metadata": {"annotations": {"note": "kept"}}}
        cluster.client.expect("PATCH", THEIRS, note, MERGE)
        assert patch(cluster, agents.others, THEIRS, {"spec": {"devices": [{"name": "gpu-c"}]}})[0] == 200
        assert patch(cluster, agents.others, THEIRS, {"metadata": {"annotations": {"note": "changed"}}})[0] == 422
    finally:
        delete(cluster)


# -- claims ----------------------------------------------------------------------------------------------------------

WHOLE, SHARE, ISOLATED, CORE, _ = CLASSES


@pytest.fixture
def of_administrators(cluster: Cluster) -> Iterator[None]:
    """The namespace `default` is one that may have claims with `adminAccess`."""
    label_default(cluster, "true")
    yield
    label_default(cluster, None)


def requests_of(kind: str, *requests: Json) -> tuple[str, Json]:
    spec: Json = {"devices": {"requests": list(requests)}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "tried"}, "spec": spec}
    return f"{CLAIMS}/{kind.lower()}s?dryRun=All", body


def exactly(device_class: str, name: str = "gpu", **amounts: str) -> Json:
    return {"name": name, "exactly": {"deviceClassName": device_class, "capacity": {"requests": amounts}}}


def alternatives(*device_classes: str, **amounts: str) -> Json:
    several = [
        {"name": f"choice-{n}", "deviceClassName": one, "capacity": {"requests": amounts}}
        for n, one in enumerate(device_classes)
    ]
    return {"name": "gpu", "firstAvailable": several}


KINDS = pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])


@KINDS
@pytest.mark.parametrize(
    "requests",
    [
        [exactly(WHOLE)],
        [exactly(SHARE)],
        [exactly(SHARE, memory="8Gi")],
        [exactly(SHARE, memory="8Gi", cores="30")],
        [exactly(ISOLATED, memory="8Gi")],
        [exactly(CORE, memory="8Gi", cores="30")],
        [alternatives(CORE, SHARE, memory="8Gi", cores="30")],
        [exactly("other.example.com", cores="30")],
        [exactly("other.example.com", memory="8", cores="0.3")],
        [exactly(SHARE, memory="512Mi", cores="0")],
        [exactly(SHARE, memory="8589934592", cores="7")],
        [exactly(SHARE, memory="8Gi", sharers="1")],
        [],
    ],
)
def test_claims_with_both_or_neither_are_taken(
    cluster: Cluster, agents: Agents, kind: str, requests: list[Json]
) -> None:
    path, body = requests_of(kind, *requests)
    status, answer = cluster.api("POST", path, body)
    assert status == 201, answer


@KINDS
@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([exactly(CORE, memory="8Gi")], "capacity.requests has to name both memory and cores"),
        ([exactly(CORE, cores="30")], "capacity.requests has to name both memory and cores"),
        ([exactly(CORE)], "capacity.requests has to name both memory and cores"),
        ([alternatives(SHARE, CORE, memory="8Gi")], "capacity.requests has to name both memory and cores"),
        ([exactly(SHARE, memory="8Gi"), exactly(CORE, "more")], "has to name both memory and cores"),
        ([exactly(WHOLE, memory="8Gi")], "gives whole GPUs: name neither memory nor cores"),
        ([exactly(WHOLE, cores="30")], "gives whole GPUs: name neither memory nor cores"),
        ([exactly(SHARE, cores="30")], "a request for cores has to name memory, too"),
        ([exactly(ISOLATED, cores="30")], "a request for cores has to name memory, too"),
    ],
)
def test_claims_with_one_of_both_are_refused_with_a_sentence(
    cluster: Cluster, agents: Agents, kind: str, requests: list[Json], expected: str
) -> None:
    path, body = requests_of(kind, *requests)
    status, answer = cluster.api("POST", path, body)
    assert (status, expected in answer["message"]) == (422, True), answer


@KINDS
@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([exactly(SHARE, memory="16")], "less than 1Mi, as amounts without a suffix are bytes: did you mean 16Gi?"),
        ([exactly(SHARE, memory="0")], "did you mean 8Gi?"),
        ([exactly(ISOLATED, memory="-1Gi")], "did you mean 8Gi?"),
        ([alternatives(SHARE, ISOLATED, memory="8k")], "did you mean 8Gi?"),
        ([exactly(SHARE, memory="8Gi"), exactly(SHARE, "more", memory="4")], "did you mean 4Gi?"),
        ([exactly(CORE, memory="8Gi", cores="0.3")], "cores in capacity.requests is a whole percentage"),
        ([exactly(CORE, memory="8Gi", cores="-30")], "cores in capacity.requests is a whole percentage"),
        ([exactly(CORE, memory="8Gi", cores="101")], "cores in capacity.requests is a whole percentage"),
        ([alternatives(CORE, memory="8Gi", cores="1k")], "cores in capacity.requests is a whole percentage"),
        ([exactly(SHARE, memory="8Gi", sharers="0")], "leave sharers out, unless the request has adminAccess"),
        ([alternatives(SHARE, memory="8Gi", sharers="0")], "leave sharers out, unless the request has adminAccess"),
    ],
)
def test_amounts_that_nobody_means_are_refused_with_what_was_meant(
    cluster: Cluster, agents: Agents, kind: str, requests: list[Json], expected: str
) -> None:
    path, body = requests_of(kind, *requests)
    status, answer = cluster.api("POST", path, body)
    assert (status, expected in answer["message"]) == (422, True), answer


@KINDS
@pytest.mark.parametrize("device_class", [WHOLE, SHARE, CORE])
def test_a_monitor_may_ask_for_nothing_of_a_gpu(
    cluster: Cluster, agents: Agents, of_administrators: None, kind: str, device_class: str
) -> None:
    request = exactly(device_class, memory="0", sharers="0")
    path, body = requests_of(kind, request)
    assert cluster.api("POST", path, body)[0] == 422
    request["exactly"] |= {"allocationMode": "All", "adminAccess": True}
    path, body = requests_of(kind, request)
    status, answer = cluster.api("POST", path, body)
    assert status == 201, answer


@KINDS
@pytest.mark.parametrize(("driver", "status"), [("gpu.gpuagent.io", 422), ("nic.example.com", 201)])
def test_configuration_for_this_driver_is_refused(
    cluster: Cluster, agents: Agents, kind: str, driver: str, status: int
) -> None:
    path, body = requests_of(kind, exactly(SHARE, memory="8Gi"))
    spec = body["spec"]["spec"] if kind == "ResourceClaimTemplate" else body["spec"]
    spec["devices"]["config"] = [{"opaque": {"driver": driver, "parameters": {"a": 1}}}]
    answered, answer = cluster.api("POST", path, body)
    assert answered == status, answer
    assert status == 201 or "takes no configuration" in answer["message"]


def test_where_the_gate_of_amounts_is_off_the_refusal_names_it(cluster: Cluster, agents: Agents) -> None:
    """The API server drops the amounts before it asks the policy. Whole GPUs are served as ever."""
    with cluster.control_plane_flags("--emulated-version=1.35"):
        for kind in ("ResourceClaim", "ResourceClaimTemplate"):
            path, body = requests_of(kind, exactly(CORE, memory="8Gi", cores="30"))
            status, answer = cluster.api("POST", path, body)
            assert (status, "feature gate DRAConsumableCapacity is off" in answer["message"]) == (422, True), answer
            for requests in ([exactly(WHOLE)], [alternatives(WHOLE, WHOLE)]):
                path, body = requests_of(kind, *requests)
                status, answer = cluster.api("POST", path, body)
                assert status == 201, answer


@pytest.fixture
def nvidia_runtime(cluster: Cluster) -> Iterator[None]:
    """The RuntimeClass that some examples name, without which the API server refuses their pods."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    cluster.apply({**runtime, "handler": "nvidia"})
    yield
    cluster.api("DELETE", cluster.client.path_of(runtime))


@pytest.mark.parametrize("example", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_taken(
    cluster: Cluster, agents: Agents, nvidia_runtime: None, of_administrators: None, example: Path
) -> None:
    for one in yaml.safe_load_all(example.read_text()):
        if one["kind"] == "Pod":
            one["spec"].pop("runtimeClassName", None)  # the cluster of the tests has none
        taken(cluster, one)


def taken(cluster: Cluster, one: dict[str, Any]) -> None:
    path = f"{cluster.client.path_of(one)}?fieldManager=e2e&dryRun=All&fieldValidation=Strict"
    status, answer = cluster.api("PATCH", path, one, "application/apply-patch+yaml")
    assert status == 201, answer
