"""The stand-in API server refuses of changes to pods what a real one refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.kube.api.api_errors import ApiError
from gpuagent.kube.api.client import Client
from standin.api.server import ApiServer

PATH = "/api/v1/namespaces/default/pods/p"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        made.create_pod("p", annotations={"theirs": "x"})
        yield made


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[Client]:
    made = Client(str(server.write_kubeconfig(tmp_path / "config")))
    yield made
    made.close()


def test_a_patch_against_the_version_there_is_adds_annotations(server: ApiServer, client: Client) -> None:
    seen = server.pods()[0]["metadata"]
    named = {"uid": seen["uid"], "resourceVersion": seen["resourceVersion"]}
    after = client.patch(PATH, {"metadata": {**named, "annotations": {"ours": "y"}}})["metadata"]
    assert after["annotations"] == {"theirs": "x", "ours": "y"}
    assert after["resourceVersion"] != seen["resourceVersion"]


def test_a_patch_against_an_older_version_is_a_conflict(server: ApiServer, client: Client) -> None:
    seen = server.pods()[0]["metadata"]["resourceVersion"]
    server.patch_pod("p", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ApiError, match="the object has been modified") as refused:
        client.patch(PATH, {"metadata": {"resourceVersion": seen, "annotations": {"ours": "y"}}})
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")


def test_a_pod_made_again_is_not_the_one_of_before(server: ApiServer, client: Client) -> None:
    seen = server.pods()[0]["metadata"]
    server.delete_pod("p")
    with pytest.raises(ApiError, match="404"):
        client.patch(PATH, {"metadata": {"uid": seen["uid"], "annotations": {"ours": "y"}}})
    server.create_pod("p")
    for named, status in (
        ({"uid": seen["uid"], "resourceVersion": seen["resourceVersion"]}, 409),
        ({"uid": seen["uid"]}, 422),
    ):
        with pytest.raises(ApiError) as refused:
            client.patch(PATH, {"metadata": {**named, "annotations": {"ours": "y"}}})
        assert refused.value.status == status


def test_annotations_are_small(client: Client) -> None:
    with pytest.raises(ApiError, match="Too long: may not be more than 262144 bytes"):
        client.patch(PATH, {"metadata": {"annotations": {"ours": "y" * 262_144}}})
