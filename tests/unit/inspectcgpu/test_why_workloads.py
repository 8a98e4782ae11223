"""`kubectl inspect cgpu --why deployment/NAME` and the like: its pods, or why it has none."""

import json
from functools import partial

import pytest

from inspectcgpu.fetch.why import MOST_EXPLAINED
from standin.api.server import ApiServer
from tests.unit.gpuscheduler.core.explain.cluster_objects import node, pod, share_gpus
from tests.unit.inspectcgpu.sample_cluster import add_object

QUOTA = 'pods "chat-x" is forbidden: exceeded quota: gpus, requested: requests.aliyun.com/gpu-mem=8'
TOO_LARGE = "wants 100 GiB on one GPU: 1 node(s) had no GPU with 100 GiB; most free is 80 GiB, on node-1 GPU 0"
LABELS = {"app": "chat"}
SELECTOR = {"matchLabels": LABELS}


@pytest.fixture
def server():
    with ApiServer("n0") as standin:
        created = standin.objects.create("nodes", "", node("node-1", "share", gpus=share_gpus(80)))
        assert created
        yield standin


@pytest.fixture
def call(call):
    """The command with ``--why``."""
    return partial(call, "--why")


def add(server, resource, found, namespace="default"):
    return add_object(server, resource, found, namespace)


def add_workload(server, resource, name="chat", labels=None, conditions=(), status=None, **spec):
    found = {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"selector": SELECTOR, **spec},
        "status": {"conditions": list(conditions), **(status or {})},
    }
    return add(server, resource, found)


def add_waiting(server, name, labels=None):
    add(server, "pods", pod(limits={"aliyun.com/gpu-mem": "100"}, name=name, labels=labels or LABELS))


def add_event(server, workload, message, at="2026-01-01T00:00:00Z"):
    event = {
        "metadata": {"name": f"event-{at[:4]}-{len(message)}"},
        "involvedObject": {"uid": workload["metadata"]["uid"]},
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": at,
    }
    add(server, "events", event)


def test_pods_with_the_same_answer_share_a_line(call, server):
    add_workload(server, "deployments", replicas=3)
    for name in ("chat-a", "chat-b"):
        add_waiting(server, name)
    server.create_pod("chat-c", {}, node="n0", labels=LABELS)
    server.patch_pod("chat-c", {"status": {"phase": "Running"}}, subresource="status")
    add_waiting(server, "other", {"app": "other"})
    code, out, err = call("deployment/chat")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Deployment default/chat: 2 of 3 pods wait",
        f"- each of chat-a, chat-b waits: {TOO_LARGE}",
        "- chat-c does not wait: it runs on node n0",
    ]


@pytest.mark.parametrize(
    "word", ["deploy/chat", "deployments/chat", "deployment.apps/chat", "deployments.apps/chat", "Deployment/chat"]
)
def test_kinds_are_written_as_kubectl_prints_and_takes_them(call, server, word):
    add_workload(server, "deployments", replicas=1)
    add_waiting(server, "chat-a")
    assert call(word)[1] == f"Deployment default/chat: 1 of 1 pod waits\n- chat-a waits: {TOO_LARGE}\n"


def test_a_quota_that_refuses_pods(call, server):
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA}
    add_workload(server, "deployments", replicas=3, conditions=[condition])
    assert call("deployment/chat")[1] == (
        f"Deployment default/chat has no pods: the API server refuses them: {QUOTA}\n"
    )
    add_waiting(server, "chat-a")
    assert call("deployment/chat")[1].splitlines()[1] == (
        f"- 2 more pods are wanted, but not there: the API server refuses them: {QUOTA}"
    )


def test_a_job_that_an_admission_webhook_refuses_has_the_words_of_its_latest_event(call, server):
    job = add_workload(server, "jobs")
    add_event(server, job, "an older refusal", at="2025-01-01T00:00:00Z")
    add_event(server, job, 'admission webhook "x" denied the request')
    assert call("job/chat")[1] == (
        'Job default/chat has no pods: the API server refuses them: admission webhook "x" denied the request\n'
    )


def test_a_job_in_a_queue_of_kueue(call, server):
    server.installed.add("workloads")
    job = add_workload(server, "jobs", labels={"kueue.x-k8s.io/queue-name": "gpus"}, suspend=True)
    text = "Job default/chat has no pods: it is suspended until Kueue admits it through the queue gpus"
    assert call("job/chat")[1] == f"{text}\n"
    message = "couldn't assign flavors to pod set main: insufficient unused quota for aliyun.com/gpu-mem"
    condition = {"type": "QuotaReserved", "status": "False", "message": message}
    labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    queued = {"metadata": {"name": "job-chat", "labels": labels}, "status": {"conditions": [condition]}}
    add(server, "workloads", queued)
    assert call("job/chat")[1] == f"{text}: {message}\n"


@pytest.mark.parametrize(
    ("resource", "given", "expected"),
    [
        ("jobs", {"suspend": True}, "it is suspended: it makes pods when spec.suspend is set to false"),
        ("jobs", {"conditions": [{"type": "Complete", "status": "True"}]}, "it is complete"),
        (
            "jobs",
            {"conditions": [{"type": "Failed", "status": "True", "message": "too many retries"}]},
            "it has failed: too many retries",
        ),
        ("statefulsets", {"replicas": 0}, "its spec.replicas is 0"),
        ("deployments", {"paused": True}, "it is paused (spec.paused)"),
        ("daemonsets", {"status": {"desiredNumberScheduled": 0}}, "no node meets its node selector and affinity"),
        (
            "replicasets",
            {},
            "its controller has not made them; kubectl describe replicasets.apps chat may show why",
        ),
    ],
)
def test_why_there_are_no_pods(call, server, resource, given, expected):
    add_workload(server, resource, **given)
    kind = resource.removesuffix("s")
    assert call(f"{kind}/chat")[1].split(" has no pods: ")[1] == f"{expected}\n"


def test_pods_of_a_custom_kind_are_found_by_the_label_of_its_controller(call, server):
    server.installed.add("jobsets")
    add(server, "jobsets", {"metadata": {"name": "train"}, "spec": {}})
    add_waiting(server, "train-0", {"jobset.sigs.k8s.io/jobset-name": "train"})
    assert call("jobset/train")[1].splitlines()[0] == "JobSet default/train: 1 of 1 pod waits"


def test_a_workload_with_expressions_selects_its_pods_alone(call, server):
    expressions = [{"key": "app", "operator": "Exists"}, {"key": "old", "operator": "DoesNotExist"}]
    add_workload(server, "deployments", replicas=1, selector={"matchLabels": LABELS, "matchExpressions": expressions})
    add_waiting(server, "chat-a")
    add_waiting(server, "chat-old", {**LABELS, "old": "true"})
    assert "1 of 1 pod waits" in call("deployment/chat")[1]


def test_the_cluster_is_read_once_and_only_some_pods_are_explained(call, server):
    count = MOST_EXPLAINED + 30
    add_workload(server, "deployments", replicas=count)
    for number in range(count):
        add_waiting(server, f"chat-{number:03}")
    server.requests.clear()
    _, out, _ = call("deployment/chat")
    assert out.splitlines() == [
        f"Deployment default/chat: {count} of {count} pods wait",
        f"- each of chat-000, chat-001, chat-002 and {MOST_EXPLAINED - 3} more waits: {TOO_LARGE}",
        "- 30 more wait, which are not explained here",
    ]
    assert server.requests["list nodes"] == 1
    assert server.requests["list events"] == MOST_EXPLAINED


def test_a_program_gets_each_pod(call, server):
    add_workload(server, "deployments", replicas=2)
    add_waiting(server, "chat-a")
    found = json.loads(call("deployment/chat", "-o", "json")[1])
    why = "its controller has not made them; kubectl describe deployments.apps chat may show why"
    assert found == {
        "kind": "Deployment",
        "namespace": "default",
        "name": "chat",
        "waits": True,
        "podsMissing": 1,
        "why": why,
        "pods": [{"namespace": "default", "name": "chat-a", "waits": True, "why": TOO_LARGE}],
        "podsNotExplained": 0,
        "notes": [],
    }


def test_a_workload_that_there_is_not(call):
    error = "kubectl-inspect-cgpu: there is no Deployment chat in namespace team-a\n"
    assert call("deployment/chat", "-n", "team-a") == (1, "", error)


def test_the_name_of_a_workload_in_another_namespace(call, server):
    add_workload(server, "deployments")
    error = "there is no Deployment chat in namespace ml; there is one in namespace default: add -n default\n"
    assert call("deployment/chat", "-n", "ml")[2].endswith(error)


def test_a_mistyped_name_of_a_workload(call, server):
    add_workload(server, "deployments")
    error = "there is no Deployment chatt in namespace default; did you mean chat?\n"
    assert call("deployment/chatt")[2].endswith(error)


def test_a_kind_that_the_cluster_does_not_have(call, server):
    server.fail("list", "jobsets", 404)
    error = (
        "there is no JobSet x in namespace default: the cluster has no jobsets.jobset.x-k8s.io of version v1alpha2\n"
    )
    assert call("jobset/x")[2].endswith(error)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cronjob/nightly", "'cronjob/nightly' is a CronJob, whose Jobs make the pods: name one of those that"),
        ("service/chat", "'service/chat' has a kind that --why does not know: write the name of a pod, or KIND/NAME"),
        ("/chat", "'/chat' has a kind that --why does not know"),
        ("job/", "'job/' names no pod: --why is about a pod or what makes pods"),
    ],
)
def test_words_that_name_neither_are_refused_with_what_to_type(call, word, expected):
    code, _, err = call(word)
    assert code == 2
    assert err.startswith(f"kubectl-inspect-cgpu: {expected}")


def test_a_pod_as_lists_and_alerts_show_it_is_refused_with_what_to_type(call):
    code, _, err = call("team-a/chat")
    assert code == 2
    assert err.endswith("; for pod chat of namespace team-a, write --why chat -n team-a\n")


def test_the_name_of_a_workload_without_its_kind(call, server):
    add_workload(server, "statefulsets")
    assert call("chat")[2].endswith("there is no pod chat in namespace default; did you mean statefulset/chat?\n")


def test_the_name_of_a_pod_in_another_namespace(call, server):
    add(server, "pods", pod(name="chat") | {"metadata": {"name": "chat", "namespace": "ml"}}, "ml")
    assert call("chat")[2].endswith(
        "there is no pod chat in namespace default; there is one in namespace ml: add -n ml\n"
    )


def test_a_mistyped_name_of_a_pod(call, server):
    add_waiting(server, "chat-7d9f")
    assert call("chat-7d9e")[2].endswith("there is no pod chat-7d9e in namespace default; did you mean chat-7d9f?\n")


def test_a_tenant_gets_the_pod_that_was_meant_in_its_own_namespace(call, server):
    add_waiting(server, "chat-7d9f")
    # The list of all namespaces comes first.
    server.fail("list", "pods", 403)
    assert call("chat-7d9e")[2].endswith("did you mean chat-7d9f?\n")


def test_a_tenant_gets_the_workload_that_was_meant_in_its_own_namespace(call, server):
    add_workload(server, "deployments")
    # The first read of the namespace is whether there is the kind.
    server.fail("list", "deployments", 403, 403)
    assert call("deployment/caht")[2].endswith("did you mean chat?\n")


def test_a_user_who_may_read_nothing_else_gets_the_sentence_alone(call, server):
    add_waiting(server, "chat-7d9f")
    for resource in ("deployments", "statefulsets", "daemonsets", "replicasets", "jobs"):
        server.deny("get", resource)
    server.deny("list", "pods")
    assert call("chat-7d9e")[2] == "kubectl-inspect-cgpu: there is no pod chat-7d9e in namespace default\n"


def test_what_others_wrote_steers_no_terminal(call, server):
    condition = {"type": "ReplicaFailure", "status": "True", "message": "\x1b[31mred"}
    add_workload(server, "deployments", conditions=[condition])
    assert "\x1b" not in call("deployment/chat")[1]
