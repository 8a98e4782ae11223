"""What makes pods: Deployments, Jobs and others, and why such a workload has fewer pods than it should."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, sentence, text

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a workload that Kueue starts. Source: pkg/controller/constants of kubernetes-sigs/kueue."""
_ENDED = {"Complete": "it is complete", "Completed": "it is complete", "Succeeded": "it has succeeded"}
_FAILED = ("Failed", "FailureTarget")
_OPERATORS = {"In": "in", "NotIn": "notin"}


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A kind of objects that make pods.

    Attributes:
        kind: as in the objects.
        group: API group.
        version: of the group.
        resource: in paths of the API, and in names that kubectl prints.
        words: other names that kubectl takes for it.
        label: label of its pods with its name; empty if the object has a selector of pods.
    """

    kind: str
    group: str
    version: str
    resource: str
    words: tuple[str, ...]
    label: str = ""

    def names(self) -> tuple[str, ...]:
        """What may stand before the slash, as in ``deployment.apps/chat``."""
        singular = self.kind.lower()
        with_group = (f"{singular}.{self.group}", f"{self.resource}.{self.group}")
        return (singular, self.resource, *self.words, *with_group)

    def folder(self, namespace: str = "") -> str:
        """Path of the objects of a namespace in the API; without one, of all."""
        of_namespace = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"/apis/{self.group}/{self.version}{of_namespace}/{self.resource}"

    def path(self, namespace: str, name: str) -> str:
        """Path of an object in the API."""
        return f"{self.folder(namespace)}/{quote(name, safe='')}"


DEPLOYMENT = WorkloadKind("Deployment", "apps", "v1", "deployments", ("deploy",))
REPLICA_SET = WorkloadKind("ReplicaSet", "apps", "v1", "replicasets", ("rs",))
STATEFUL_SET = WorkloadKind("StatefulSet", "apps", "v1", "statefulsets", ("sts",))
DAEMON_SET = WorkloadKind("DaemonSet", "apps", "v1", "daemonsets", ("ds",))
JOB = WorkloadKind("Job", "batch", "v1", "jobs", ())
_JOB_SET = WorkloadKind("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets", (), "jobset.sigs.k8s.io/jobset-name")
_LEADER_WORKER_SET = WorkloadKind(
    "LeaderWorkerSet",
    "leaderworkerset.x-k8s.io",
    "v1",
    "leaderworkersets",
    ("lws",),
    "leaderworkerset.sigs.k8s.io/name",
)
_PYTORCH_JOB = WorkloadKind(
    "PyTorchJob",
    "kubeflow.org",
    "v1",
    "pytorchjobs",
    (),
    "training.kubeflow.org/job-name",
)
KINDS = (DEPLOYMENT, STATEFUL_SET, JOB, DAEMON_SET, REPLICA_SET, _JOB_SET, _LEADER_WORKER_SET, _PYTORCH_JOB)
"""Those that are explained, the most usual first."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as it is named on the command line."""

    kind: WorkloadKind
    name: str


def pods_selector(workload: Workload, stored: Mapping[str, Any]) -> str:
    """Label selector of the workload's pods, in the form of the API; empty if it selects none."""
    if workload.kind.label:
        return f"{workload.kind.label}={workload.name}"
    selector = mapping_at(stored, "spec", "selector")
    labels = mapping(selector.get("matchLabels"))
    parts = [f"{key}={value}" for key, value in labels.items()]
    parts += _expressions(selector)
    return ",".join(parts)


def _expressions(selector: Mapping[str, Any]) -> Iterator[str]:
    for expression in mappings(selector.get("matchExpressions")):
        key = text(expression.get("key"))
        operator = text(expression.get("operator"))
        values = expression.get("values")
        if operator in _OPERATORS and isinstance(values, list):
            yield f"{key} {_OPERATORS[operator]} ({','.join(map(str, values))})"
        elif operator == "Exists":
            yield key
        elif operator == "DoesNotExist":
            yield f"!{key}"


def pods_wanted(kind: WorkloadKind, stored: Mapping[str, Any]) -> int | None:
    """How many pods there should be now; None if the object does not say it."""
    spec = mapping(stored.get("spec"))
    status = mapping(stored.get("status"))
    if kind in {DEPLOYMENT, REPLICA_SET, STATEFUL_SET}:
        replicas = number(spec.get("replicas"))
        return 1 if replicas is None else replicas
    if kind == DAEMON_SET:
        return number(status.get("desiredNumberScheduled"))
    return None


def is_suspended(stored: Mapping[str, Any]) -> bool:
    """Whether the workload makes no pods until a user or a controller such as Kueue resumes it."""
    spec = mapping(stored.get("spec"))
    return spec.get("suspend") is True or mapping(spec.get("runPolicy")).get("suspend") is True


def why_without_pods(
    workload: Workload,
    stored: Mapping[str, Any],
    events: Mapping[str, Any] | None,
    queued: Mapping[str, Any] | None,
) -> str:
    """Why the workload has no pods, or fewer than it should.

    Args:
        workload: its kind and name.
        stored: the object (decoded JSON).
        events: the list of its Events; None if it could not be read.
        queued: the list of Kueue's Workloads for it; None if it could not be read.
    """
    conditions = _true_conditions(stored)
    ended = _ended(conditions)
    if ended:
        return ended
    if is_suspended(stored):
        return _suspended(stored, queued)
    wanted = pods_wanted(workload.kind, stored)
    if wanted == 0:
        is_of_nodes = workload.kind == DAEMON_SET
        return "no node meets its node selector and affinity" if is_of_nodes else "its spec.replicas is 0"
    refused = sentence(conditions.get("ReplicaFailure", {}).get("message")) or _not_created(events)
    if refused:
        return f"the API server refuses them: {refused}"
    if mapping(stored.get("spec")).get("paused") is True:
        return "it is paused (spec.paused)"
    names = f"{workload.kind.resource}.{workload.kind.group} {workload.name}"
    return f"its controller has not made them; kubectl describe {names} may show why"


def _true_conditions(stored: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions that are true, by type."""
    conditions = mappings(mapping_at(stored, "status").get("conditions"))
    return {text(condition.get("type")): condition for condition in conditions if condition.get("status") == "True"}


def _ended(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    for kind, words in _ENDED.items():
        if kind in conditions:
            return words
    for kind in _FAILED:
        if kind in conditions:
            message = sentence(conditions[kind].get("message"))
            return f"it has failed: {message}" if message else "it has failed"
    return ""


def _suspended(stored: Mapping[str, Any], queued: Mapping[str, Any] | None) -> str:
    labels = mapping_at(stored, "metadata", "labels")
    queue = text(labels.get(QUEUE_LABEL))
    if not queue:
        return "it is suspended: it makes pods when spec.suspend is set to false"
    reason = _not_admitted(queued)
    waiting = f"it is suspended until Kueue admits it through the queue {queue}"
    return f"{waiting}: {reason}" if reason else waiting


def _not_admitted(queued: Mapping[str, Any] | None) -> str:
    """Why Kueue does not admit a Workload, in its words."""
    for kueue_workload in mappings(mapping(queued).get("items")):
        for condition in mappings(mapping_at(kueue_workload, "status").get("conditions")):
            if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
                return sentence(condition.get("message"))
    return ""


def _not_created(events: Mapping[str, Any] | None) -> str:
    """The words of the latest Event about a pod that the API server refused."""
    latest = ("", "")
    for event in mappings(mapping(events).get("items")):
        if event.get("reason") == "FailedCreate":
            latest = max(latest, (text(event.get("lastTimestamp")), sentence(event.get("message"))))
    _, message = latest
    return message
