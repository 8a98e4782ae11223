"""The stand-in API server refuses of ConfigMaps what a real one refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.kube.api.api_errors import ApiError
from gpuagent.kube.api.client import Client
from standin.api.objects import Json
from standin.api.server import ApiServer

PATH = "/api/v1/namespaces/kube-system/configmaps"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with ApiServer() as server:
        made = Client(str(server.write_kubeconfig(tmp_path / "config")))
        yield made
        made.close()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"metadata": {"name": "Upper"}}, 'ConfigMap "Upper" is invalid: metadata.name'),
        ({"metadata": {"name": "a" * 254}}, "422 Invalid"),
        ({"metadata": {}}, r"metadata\.name: Required value"),
        ({"metadata": {"name": "a", "namespace": "other"}}, "400 BadRequest: the namespace of the provided object"),
        ({"metadata": {"name": "a", "labels": {"nodename": "n" * 64}}}, r"metadata\.labels"),
        ({"metadata": {"name": "a", "labels": {"-bad": ""}}}, r"metadata\.labels"),
        ({"metadata": {"name": "a"}, "data": {"no/slash": ""}}, "data"),
        ({"metadata": {"name": "a"}, "data": {"..up": ""}}, "data"),
        ({"metadata": {"name": "a"}, "data": {"count": 8}}, "400 BadRequest: json: cannot unmarshal"),
        ({"metadata": {"name": "a"}, "data": {"big": "x" * 1_048_577}}, "Too long"),
    ],
)
def test_what_is_invalid_is_refused(client: Client, body: Json, text: str) -> None:
    with pytest.raises(ApiError, match=text):
        client.create(PATH, body)


def test_names_keys_and_labels_that_the_agent_uses_are_taken(client: Client) -> None:
    labels = {"ack.node.gpu.schedule": "topology", "nodename": "cn-beijing.10.0.0.1", "a.b/c": ""}
    metadata = {"name": "cn-beijing.10.0.0.1-gputopo-report", "labels": labels}
    assert client.create(PATH, {"metadata": metadata, "data": {"devices": "x" * 1_048_576, "0": ""}})


def test_an_immutable_one_keeps_its_data(client: Client) -> None:
    client.create(PATH, {"metadata": {"name": "a"}, "immutable": True, "data": {"a": "b"}})
    client.patch(f"{PATH}/a", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ApiError, match="field is immutable"):
        client.patch(f"{PATH}/a", {"data": {"a": "c"}})


def test_a_patch_or_deletion_from_an_old_look_is_a_conflict(client: Client) -> None:
    made = client.create(PATH, {"metadata": {"name": "a"}})["metadata"]
    old = {key: made[key] for key in ("uid", "resourceVersion")}
    client.patch(f"{PATH}/a", {"data": {"a": "b"}})
    with pytest.raises(ApiError, match="409 Conflict"):
        client.patch(f"{PATH}/a", {"metadata": {"resourceVersion": old["resourceVersion"]}, "data": {"a": "c"}})
    with pytest.raises(ApiError, match="409 Conflict.*in the precondition"):
        client.delete(f"{PATH}/a", {"preconditions": old})
    assert client.delete(f"{PATH}/a", {"preconditions": {"uid": old["uid"]}})["status"] == "Success"
    with pytest.raises(ApiError, match="404 NotFound"):
        client.delete(f"{PATH}/a")


def test_a_name_is_given_once_in_a_namespace(client: Client) -> None:
    client.create(PATH, {"metadata": {"name": "a"}})
    client.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
    with pytest.raises(ApiError, match="409 AlreadyExists"):
        client.create(PATH, {"metadata": {"name": "a"}})
