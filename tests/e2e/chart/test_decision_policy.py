"""The chart's policy of decisions on the real API server: schedulers and agents say which GPUs a pod has, tenants do not."""

import itertools
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION, WRITTEN_KEYS
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION
from manifests.render import CHART
from tests.e2e.chart.agents import MERGE
from tests.e2e.chart.release import HELM
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster, pod_manifest

Json = dict[str, Any]

KEYS = (*WRITTEN_KEYS, COMMIT_ANNOTATION)
NAMESPACE = "tenants"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EDITS = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["create", "get", "update", "patch"]}
OF_THE_ROLE_EDIT = [{"resources": ["pods"], "verbs": ["create", "get", "patch", "delete"]}]
BINDS = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
RIGHTS: dict[str, tuple[str, list[Json]]] = {
    "tenant": (NAMESPACE, []),
    "scheduler": ("schedulers", [EDITS, BINDS]),
    "node-agent": ("schedulers", [EDITS]),
    "stranger": ("schedulers", [EDITS]),
    "controller": ("kube-system", [EDITS]),
}
"""Service accounts: namespace, and rights in the tenants' namespace. The tenant has the cluster's role `edit` there."""


def policy(template: str, **values: str) -> list[Json]:
    """What the chart installs with these values of `admissionPolicy`."""
    command = [str(HELM), "template", "gpuagent", str(CHART), "--namespace=kube-system", "--kube-version=1.36"]
    command += ["--set=image.repository=none", f"--show-only=templates/{template}.yaml"]
    command += [f"--set-json=admissionPolicy.{key}={value}" for key, value in values.items()]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout
    return [found for found in yaml.safe_load_all(rendered) if found]


def rbac(name: str, role: str, kind: str) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": RIGHTS[name][0]}],
    }


@pytest.fixture(scope="module")
def tokens(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The token of each service account."""
    made: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (NAMESPACE, "schedulers")
    ]
    found = {}
    for name, (namespace, rules) in RIGHTS.items():
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace},
        }
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "rules": rules,
        }
        made += [account, role, rbac(name, name, "Role") if rules else rbac(name, "edit", "ClusterRole")]
    for manifest in made:
        cluster.apply(manifest)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    for name, (namespace, _) in RIGHTS.items():
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        found[name] = str(cluster.client.expect("POST", path, request)["status"]["token"])
    for name, (_, rules) in RIGHTS.items():
        _wait_for_rights(cluster, found[name], rules or OF_THE_ROLE_EDIT)
    # Without it, the API server takes no pod of the namespace.
    cluster.client.wait(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", "default", bool)
    yield found
    for manifest in reversed(made):
        cluster.api("DELETE", cluster.client.path_of(manifest))


def _wait_for_rights(cluster: Cluster, token: str, rules: list[Json]) -> None:
    """Wait until RBAC lets the account do all of this, so that every refusal from then on is the policy's."""
    deadline = time.monotonic() + WAIT_S
    for rule in rules:
        for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
            while not _may(cluster, token, resource, verb):
                assert time.monotonic() < deadline, f"RBAC does not allow {verb} of {resource}"
                time.sleep(0.1)


def _may(cluster: Cluster, token: str, resource: str, verb: str) -> bool:
    """Whether the API server says so to the account itself."""
    kind, _, part = resource.partition("/")
    attributes = {"namespace": NAMESPACE, "resource": kind, "subresource": part, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    status, answer = cluster.api("POST", path, review, token=token)
    return status == 201 and bool(answer["status"]["allowed"])


def new_pod(name: str, annotations: dict[str, str] | None = None, node: str | None = None) -> Json:
    made = pod_manifest(name, {}, node=node, annotations=annotations or {})
    made["metadata"]["namespace"] = NAMESPACE
    return made


@contextmanager
def in_force(
    cluster: Cluster, tenant: str, template: str = "decision-policy", key: str = KEYS[0], **values: str
) -> Iterator[None]:
    objects = policy(template, **values)
    name = objects[0]["metadata"]["name"]
    for manifest in objects:
        cluster.apply(manifest)
    seen = cluster.client.wait(
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        name,
        lambda one: "typeChecking" in (one or {}).get("status", {}),
    )
    assert (seen or {})["status"]["typeChecking"] == {}
    cluster.create_pod(new_pod("probe"))
    _wait_for_answer(cluster, tenant, key, refused=True)
    try:
        yield
    finally:
        for manifest in reversed(objects):
            cluster.api("DELETE", cluster.client.path_of(manifest))
        # The API server goes by a policy for a moment after it is deleted: the next test must not take it for its own.
        _wait_for_answer(cluster, tenant, key, refused=False)
        for found in cluster.api("GET", PODS)[1]["items"]:
            cluster.api("DELETE", f"{PODS}/{found['metadata']['name']}", {"gracePeriodSeconds": 0})


def _wait_for_answer(cluster: Cluster, tenant: str, key: str, *, refused: bool) -> None:
    deadline = time.monotonic() + WAIT_S
    wanted = 403 if refused else 200
    while (answer := write(cluster, tenant, "probe", {key: str(time.monotonic())}))[0] != wanted:
        assert time.monotonic() < deadline, f"the policy is {'not' if refused else 'still'} in force: {answer}"
        time.sleep(0.1)


def write(
    cluster: Cluster, token: str | None, pod: str, annotations: dict[str, str | None], part: str = ""
) -> tuple[int, str]:
    body = {"metadata": {"annotations": annotations}}
    status, answer = cluster.api("PATCH", f"{PODS}/{pod}{part}", body, MERGE, token)
    return status, str(answer.get("message", ""))


def test_a_tenant_changes_no_decision_of_a_pod_and_everything_else(cluster: Cluster, tokens: dict[str, str]) -> None:
    tenant = tokens["tenant"]
    with in_force(cluster, tenant):
        own = new_pod("p", dict.fromkeys(KEYS, "0"), NODE_NAME)
        assert cluster.api("POST", PODS, own, token=tenant)[0] == 201
        assert cluster.api("POST", PODS, new_pod("bare"), token=tenant)[0] == 201
        for key in KEYS:
            for pod, value in (("p", "1"), ("p", None), ("bare", "1")):
                status, message = write(cluster, tenant, pod, {key: value})
                assert (status, key in message, "do not set, change or remove" in message) == (403, True, True), message
        assert write(cluster, tokens["stranger"], "p", {KEYS[0]: "1"}, "/status")[0] == 403
        more = {"metadata": {"annotations": {"example.com/mine": "1"}, "labels": {"mine": "1"}}}
        assert cluster.api("PATCH", f"{PODS}/p", more, MERGE, tenant)[0] == 200
        assert cluster.api("DELETE", f"{PODS}/bare", token=tenant)[0] == 200


def test_those_who_decide_are_not_kept_from_it(cluster: Cluster, tokens: dict[str, str]) -> None:
    with in_force(cluster, tokens["tenant"], decisionWriters='["system:serviceaccount:schedulers:node-agent"]'):
        assert cluster.api("POST", PODS, new_pod("p", node=NODE_NAME))[0] == 201
        for number, name in enumerate(("scheduler", "node-agent", "controller")):
            deadline = time.monotonic() + WAIT_S
            while (answer := write(cluster, tokens[name], "p", dict.fromkeys(KEYS, str(number))))[0] != 200:
                # Until the API server uses this policy, that of the test before may be in force.
                assert time.monotonic() < deadline, (name, answer)
                time.sleep(0.1)
            assert write(cluster, tokens[name], "p", dict.fromkeys(KEYS))[0] == 200
        assert write(cluster, None, "p", dict.fromkeys(KEYS, "9"))[0] == 200  # a cluster administrator
        assert write(cluster, tokens["stranger"], "p", {KEYS[0]: "1"})[0] == 403


def test_with_create_no_tenant_creates_a_pod_with_a_decision(cluster: Cluster, tokens: dict[str, str]) -> None:
    tenant = tokens["tenant"]
    with in_force(cluster, tenant, decisions='"create"'):
        status, answer = cluster.api("POST", PODS, new_pod("p", {KEYS[0]: "0"}), token=tenant)
        assert (status, f"do not set {KEYS[0]}" in answer["message"]) == (403, True), answer
        assert cluster.api("POST", PODS, new_pod("bare", {"mine": "1"}), token=tenant)[0] == 201
        assert write(cluster, tenant, "bare", {KEYS[0]: "1"})[0] == 403
        assert cluster.api("POST", PODS, new_pod("q", {KEYS[0]: "0"}), token=tokens["scheduler"])[0] == 201


def test_only_operators_resize_a_pod_and_nobody_creates_a_resized_one(cluster: Cluster, tokens: dict[str, str]) -> None:
    """A template with the annotation would be a way around: controllers of kube-system make its pods."""
    tenant = tokens["tenant"]
    writer = '["system:serviceaccount:schedulers:node-agent"]'
    with in_force(cluster, tenant, "limit-policy", LIMIT_ANNOTATION, decisionWriters=writer):
        for key in (LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION):
            for name in ("tenant", "controller", "scheduler", "node-agent"):
                status, answer = cluster.api("POST", PODS, new_pod("born", {key: "main=9"}), token=tokens[name])
                assert (status, "a new pod cannot have" in answer["message"]) == (403, True), (name, answer)
            assert cluster.api("POST", PODS, new_pod("p", node=NODE_NAME), token=tenant)[0] in {201, 409}
            for name in ("node-agent", "scheduler"):
                assert write(cluster, tokens[name], "p", {key: "main=9"})[0] == 200, name
            for name in ("tenant", "stranger", "controller"):
                for value in ("main=10", None):
                    status, message = write(cluster, tokens[name], "p", {key: value})
                    assert (status, key in message, "is for operators to say" in message) == (403, True, True), message
            assert write(cluster, tokens["stranger"], "p", {key: "main=10"}, "/status")[0] == 403
            assert write(cluster, None, "p", {key: None})[0] == 200  # a cluster administrator
        more = {"metadata": {"annotations": {"example.com/mine": "1"}}}
        assert cluster.api("PATCH", f"{PODS}/p", more, MERGE, tenant)[0] == 200
