"""The stand-in API server deletes pods as a real one does."""

from collections.abc import Iterator

import pytest

from standin.api.refusal import Refusal
from standin.api.server import ApiServer

KEY = ("pods", "default", "p")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        yield made


def test_a_pod_that_runs_is_going_until_its_kubelet_acts_and_one_that_ended_goes_at_once(server: ApiServer) -> None:
    server.create_pod("p")
    server.delete_pod("p", grace_s=None)
    assert server.pods()[0]["metadata"]["deletionGracePeriodSeconds"] == 30
    server.patch_pod("p", {"status": {"phase": "Failed"}}, subresource="status")
    server.delete_pod("p", grace_s=None)
    assert server.pods() == []


def test_a_finalizer_keeps_it_until_it_is_taken_away(server: ApiServer) -> None:
    server.create_pod("p")
    server.patch_pod("p", {"metadata": {"finalizers": ["example.com/hold"]}})
    server.patch_pod("p", {"status": {"phase": "Failed"}}, subresource="status")
    server.delete_pod("p", grace_s=None)
    assert server.pods()[0]["metadata"]["deletionTimestamp"]
    server.patch_pod("p", {"metadata": {"finalizers": None}})
    assert server.pods() == []


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_preconditions_name_the_pod_that_is_meant(server: ApiServer, field: str) -> None:
    found = server.create_pod("p")["metadata"]
    with pytest.raises(Refusal, match="precondition"):
        server.objects.delete(KEY, grace_s=None, preconditions={field: "another"})
    server.objects.delete(KEY, grace_s=0, preconditions={field: found[field]})
    assert server.pods() == []


def test_taints_are_one_list_that_a_patch_replaces(server: ApiServer) -> None:
    node = ("nodes", "", server.node_name)
    for taints in ([{"key": "a"}, {"key": "b"}], [{"key": "a"}]):
        assert server.objects.patch(node, "", {"spec": {"taints": taints}}, strategic=True)["spec"]["taints"] == taints
