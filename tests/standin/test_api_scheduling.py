"""The stand-in API server takes and refuses what schedulers write, in the words of kube-apiserver 1.36.3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.kube.api.api_errors import ApiError
from gpuagent.kube.api.client import STRATEGIC_MERGE_PATCH, Client
from standin.api.server import ApiServer

Json = dict[str, Any]

PATH = "/api/v1/namespaces/default/pods/p"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
ANOTHER = "0a1b2c3d-0000-4000-8000-000000000001"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        made.create_pod("p", node="", annotations={"theirs": "x"})
        yield made


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[Client]:
    made = Client(str(server.write_kubeconfig(tmp_path / "config")))
    yield made
    made.close()


def bind(client: Client, node: str = "n1", name: str = "p", **meta: Any) -> Json:
    metadata = {"name": name, **meta}
    return client.create(f"{PATH}/binding", {"metadata": metadata, "target": {"kind": "Node", "name": node}})


def refused(status: int, text: str) -> Any:
    return pytest.raises(ApiError, match=rf"(?s){status}.*{text}")


def test_a_binding_sets_node_and_annotations_at_once(server: ApiServer, client: Client) -> None:
    uid = server.pods()[0]["metadata"]["uid"]
    before = server.objects.version
    bind(client, uid=uid, annotations={"ours": "y"})
    (pod,) = server.pods()
    assert server.objects.version == before + 1
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["annotations"] == {"theirs": "x", "ours": "y"}
    assert {"type": "PodScheduled", "status": "True"} in pod["status"]["conditions"]


def test_a_bound_pod_stays_where_it_is(client: Client) -> None:
    bind(client)
    for node in ("n1", "n2"):
        with refused(409, 'pod p is already assigned to node "n1"'):
            bind(client, node)


def test_a_binding_may_name_the_pod_that_is_meant(server: ApiServer, client: Client) -> None:
    uid = server.pods()[0]["metadata"]["uid"]
    with refused(409, f"UID in precondition: {ANOTHER}, UID in object meta: {uid}"):
        bind(client, uid=ANOTHER)
    with refused(409, "ResourceVersion in precondition: 1,"):
        bind(client, uid=uid, resourceVersion="1")
    with refused(400, "name in URL does not match name in Binding object"):
        bind(client, name="other")
    with refused(500, "target.name: Required value"):
        bind(client, node="")
    assert "nodeName" not in server.pods()[0]["spec"]


def test_a_pod_that_is_gated_or_going_is_not_bound(server: ApiServer, client: Client) -> None:
    server.objects.create("pods", "default", {"metadata": {"name": "g"}, "spec": {"schedulingGates": [{"name": "a"}]}})
    server.patch_pod("p", {"metadata": {"finalizers": ["example.com/hold"]}})
    server.delete_pod("p")
    with refused(409, "pod p is being deleted, cannot be assigned to a host"):
        bind(client)
    with refused(409, "pod g has non-empty .spec.schedulingGates"):
        body = {"metadata": {"name": "g"}, "target": {"name": "n1"}}
        client.create("/api/v1/namespaces/default/pods/g/binding", body)


def test_gates_can_only_be_removed(server: ApiServer, client: Client) -> None:
    gates = [{"name": "a"}, {"name": "b"}]
    server.objects.create("pods", "default", {"metadata": {"name": "g"}, "spec": {"schedulingGates": gates}})
    path = "/api/v1/namespaces/default/pods/g"
    removal = {"spec": {"schedulingGates": [{"name": "a", "$patch": "delete"}]}}
    for _ in range(2):
        assert client.patch(path, removal, STRATEGIC_MERGE_PATCH)["spec"]["schedulingGates"] == [{"name": "b"}]
    with refused(422, "only deletion is allowed, but found new scheduling gate 'c'"):
        client.patch(path, {"spec": {"schedulingGates": [{"name": "c"}]}}, STRATEGIC_MERGE_PATCH)


def test_a_nomination_is_part_of_the_status(server: ApiServer, client: Client) -> None:
    uid = server.pods()[0]["metadata"]["uid"]
    status = {"status": {"nominatedNodeName": "n7"}, "spec": {"nodeName": "n7"}}
    after = client.patch(f"{PATH}/status", {"metadata": {"uid": uid}, **status})
    assert after["status"]["nominatedNodeName"] == "n7"
    assert "nodeName" not in after["spec"]
    with refused(422, "field is immutable"):
        client.patch(f"{PATH}/status", {"metadata": {"uid": ANOTHER}, **status})
    assert "nominatedNodeName" not in client.patch(f"{PATH}/status", {"status": {"nominatedNodeName": None}})["status"]


def test_a_lease_has_a_holder(client: Client) -> None:
    with refused(404, 'leases.coordination.k8s.io "s" not found'):
        client.get(f"{LEASES}/s")
    client.create(LEASES, {"metadata": {"name": "s"}, "spec": {"holderIdentity": "host_1"}})
    found = client.get(f"{LEASES}/s")
    assert (found["apiVersion"], found["spec"]["holderIdentity"]) == ("coordination.k8s.io/v1", "host_1")
    with refused(404, "could not find the requested resource"):
        client.get("/api/v1/namespaces/kube-system/leases/s")
