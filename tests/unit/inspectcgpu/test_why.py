"""`kubectl inspect cgpu --why POD`: the reads, what a refused one costs, and pods that do not wait."""

import json
from functools import partial

import pytest
import yaml

from tests.unit.gpuscheduler.core.explain.cluster_objects import (
    claim,
    classes,
    gpu,
    held,
    node,
    pod,
    request,
    share_gpus,
    slice_of,
)
from tests.unit.inspectcgpu.sample_cluster import add_object

SENTENCE = "wants 30Gi on one GPU: most free is 12Gi, on node-3 GPU 2; 1 GPU is unhealthy (xid-79)"
SLICES = ["node-3", gpu(0, taint="unhealthy", value="xid-79"), gpu(2)]


@pytest.fixture
def call(call):
    """The command with ``--why``."""
    return partial(call, "--why")


@pytest.fixture
def waiting(server):
    """A node of two GPUs, one of which is ill and the other mostly held, and a pod that wants 30Gi."""
    add_object(server, "nodes", node("node-3"))
    add_object(server, "resourceslices", slice_of(*SLICES))
    for found in classes():
        add_object(server, "deviceclasses", found)
    add_object(server, "resourceclaims", claim("mine", request(memory="30Gi")), "default")
    other = held("theirs", "node-3", "gpu-2", memory="68Gi", namespace="team-b")
    add_object(server, "resourceclaims", other, "team-b")
    add_object(server, "pods", pod("mine"), "default")


def test_the_sentence_for_a_pod_with_a_claim(call, waiting):
    assert call("chat") == (0, f"Pod default/chat waits: {SENTENCE}\n", "")


def test_a_program_gets_json_or_yaml(call, waiting):
    _, as_json, _ = call("chat", "-o", "json")
    _, as_yaml, _ = call("chat", "-o", "yaml")
    found = {"namespace": "default", "name": "chat", "waits": True, "why": SENTENCE, "notes": []}
    assert json.loads(as_json) == yaml.safe_load(as_yaml) == found


def test_a_pod_with_gpus_in_its_limits(call, server):
    add_object(server, "nodes", node("node-1", "share", gpus=share_gpus(80)))
    add_object(server, "pods", pod(limits={"aliyun.com/gpu-mem": "100"}), "default")
    assert call("chat")[1] == (
        "Pod default/chat waits: wants 100 GiB on one GPU: 1 node(s) had no GPU with 100 GiB; "
        "most free is 80 GiB, on node-1 GPU 0\n"
    )


def test_what_the_scheduler_has_said_counts_first(call, server):
    """It knows more about pods with GPUs in their limits: reservations, jobs, moves."""
    add_object(server, "nodes", node("node-1", "share", gpus=share_gpus(80)))
    add_object(server, "pods", pod(limits={"aliyun.com/gpu-mem": "200"}), "default")
    event = {
        "metadata": {"name": "chat.1"},
        "involvedObject": {"kind": "Pod", "name": "chat", "namespace": "default", "uid": "uid-chat"},
        "reason": "WaitingForGPUs",
        "message": "node(s) had no GPU with 200 GiB",
        "source": {"component": "gpuscheduler"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    uid = server.objects.get(("pods", "default", "chat"))["metadata"]["uid"]
    event["involvedObject"]["uid"] = uid
    add_object(server, "events", event, "default")
    add_object(server, "events", event | {"metadata": {"name": "x"}, "involvedObject": {"uid": "other"}}, "default")
    assert call("chat")[1] == "Pod default/chat waits: node(s) had no GPU with 200 GiB\n"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("events", SENTENCE),
        ("nodes", SENTENCE),
        ("deviceclasses", "wants 30Gi on one GPU"),
        ("resourceslices", "wants 30Gi on one GPU: which GPUs there are is not known here"),
        ("resourceclaims", "its claim mine could not be read"),
    ],
)
def test_a_read_that_is_refused_is_named_and_costs_a_part(call, server, waiting, resource, expected):
    server.deny("list", resource)
    code, out, _ = call("chat")
    assert code == 0
    assert out.startswith(f"Pod default/chat waits: {expected}")
    assert f'allow verb "list" on resource "{resource}"' in out


def test_a_user_of_one_namespace_learns_that_others_are_not_known(call, server, waiting, monkeypatch):
    from gpuagent.kube.api.api_errors import refused
    from inspectcgpu.fetch import why

    listed = why.list_pages

    def list_pages(client, path, *rest):
        if path == "/apis/resource.k8s.io/v1/resourceclaims":
            raise refused("list", "resourceclaims", "resource.k8s.io", "cannot")
        return listed(client, path, *rest)

    monkeypatch.setattr(why, "list_pages", list_pages)
    add_object(server, "resourceclaims", held("ours", "node-3", "gpu-2", memory="60Gi"), "default")
    _, out, _ = call("chat")
    first, note = out.splitlines()
    assert first == (
        "Pod default/chat waits: wants 30Gi on one GPU: most free is 20Gi, on node-3 GPU 2; "
        "1 GPU is unhealthy (xid-79); what claims of other namespaces have is not known here"
    )
    assert note.startswith("Note: resourceclaims of all namespaces could not be read")


def test_a_pod_that_there_is_not(call):
    assert call("chat", "-n", "team-a") == (
        1,
        "",
        "kubectl-inspect-cgpu: there is no pod chat in namespace team-a\n",
    )


def test_the_namespace_is_that_of_the_context(call, server, tmp_path):
    config = tmp_path / "config"
    found = yaml.safe_load(config.read_text())
    found["contexts"][0]["context"]["namespace"] = "team-a"
    config.write_text(yaml.safe_dump(found))
    assert "there is no pod chat in namespace team-a" in call("chat")[2]
    assert "there is no pod chat in namespace team-b" in call("chat", "-n", "team-b")[2]


@pytest.mark.parametrize(
    ("status", "node_name", "expected"),
    [
        ({"phase": "Running"}, "n0", "does not wait: it runs on node n0"),
        ({"phase": "Succeeded"}, "n0", "does not wait: it has succeeded on node n0"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "no memory"},
            "n0",
            "does not wait: it has failed on node n0: Evicted: no memory",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
            },
            "n0",
            "does not wait: it has failed on node n0: container main: Error, exit code 1",
        ),
        (
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
            "n0",
            "does not wait: it was refused, UnexpectedAdmissionError: Allocate failed",
        ),
        ({"phase": "Pending"}, "n0", "waits: kubelet has not taken it up yet"),
    ],
)
def test_a_pod_with_a_node(call, server, status, node_name, expected):
    server.create_pod("chat", {}, node=node_name)
    server.patch_pod("chat", {"status": status}, subresource="status")
    assert call("chat")[1] == f"Pod default/chat {expected}\n"


def on_a_node(server, *events, status=None, **spec):
    """A pod on a node with these Events: each a reason and a message, oldest first."""
    server.create_pod("chat", {}, node="n0")
    server.patch_pod("chat", {"spec": spec})
    server.patch_pod("chat", {"status": status or {"phase": "Pending"}}, subresource="status")
    uid = server.objects.get(("pods", "default", "chat"))["metadata"]["uid"]
    for number, (reason, message) in enumerate(events):
        event = {
            "metadata": {"name": f"chat.{number}"},
            "involvedObject": {"kind": "Pod", "uid": uid},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet"},
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        }
        add_object(server, "events", event, "default")


WITH_CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
NOT_PREPARED = ("FailedPrepareDynamicResources", "GPU 1 is held by claim other")


@pytest.mark.parametrize("reason", ["FailedPrepareDynamicResources", "GPURefused"])
def test_a_claim_that_the_agent_has_not_prepared_has_its_words(call, server, reason):
    """Kubelet has an Event when the agent has refused the claim, and the agent also while the claim waits there."""
    on_a_node(server, (reason, "GPU 1 is held by claim other"), **WITH_CLAIM)
    assert call("chat")[1] == "Pod default/chat waits: its claims are not prepared: GPU 1 is held by claim other\n"


def test_a_claim_for_gpus_in_limits_has_the_agents_words_too(call, server):
    status = {"phase": "Pending", "extendedResourceClaimStatus": {"resourceClaimName": "chat-extended-x"}}
    on_a_node(server, NOT_PREPARED, status=status)
    assert "its claims are not prepared" in call("chat")[1]


def test_the_latest_event_counts(call, server):
    on_a_node(server, NOT_PREPARED, ("FailedMount", "no such ConfigMap"), **WITH_CLAIM)
    assert call("chat")[1] == "Pod default/chat waits: FailedMount: no such ConfigMap\n"


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
        {"initContainerStatuses": [{"name": "main", "state": {"running": {}}}]},
        {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
    ],
)
def test_a_claim_that_is_prepared_by_now_keeps_nobody(call, server, status):
    on_a_node(server, NOT_PREPARED, status={"phase": "Pending", **status}, **WITH_CLAIM)
    assert "not prepared" not in call("chat")[1]


def test_an_old_event_about_claims_counts_no_longer(call, server, waiting):
    """The scheduler says a reason again after a minute or more, and its Event stays for an hour."""
    uid = server.objects.get(("pods", "default", "chat"))["metadata"]["uid"]
    event = {
        "metadata": {"name": "chat.1"},
        "involvedObject": {"kind": "Pod", "uid": uid},
        "reason": "WaitingForGPUs",
        "message": "an old reason",
        "source": {"component": "gpuscheduler"},
    }
    add_object(server, "events", event, "default")
    assert call("chat")[1] == f"Pod default/chat waits: {SENTENCE}\n"
    # The scheduler sees the claims of all namespaces. Without that right, its Event says more.
    server.deny("list", "resourceclaims")
    assert call("chat")[1].startswith("Pod default/chat waits: an old reason\n")


def test_what_others_wrote_steers_no_terminal(call, server):
    add_object(server, "pods", pod("x", said="\x1b[31mred", gates=["a\x1b[2J"]), "default")
    assert "\x1b" not in call("chat")[1]
