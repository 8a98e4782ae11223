"""Reads what pods wait for, with the rights of the user. A read that is refused costs a note."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Client, Params
from gpuagent.kube.api.pages import Keep, list_pages
from gpuscheduler.core.explain.claim_facts import ClaimFacts, read_claim, read_class
from gpuscheduler.core.explain.claim_reason import ClaimCluster
from gpuscheduler.core.explain.pod_reason import Cluster, pod_reason
from gpuscheduler.core.explain.published import published, read_slice
from gpuscheduler.core.explain.resource_name import gpu_resources
from gpuscheduler.core.explain.words import did_you_mean
from inspectcgpu.read.waits import waits_for
from inspectcgpu.read.why import PodWhy, WorkloadWhy, not_started, settled
from inspectcgpu.read.workload import KINDS, Workload, is_suspended, pods_selector, pods_wanted, why_without_pods

T = TypeVar("T")
_API = "/apis/resource.k8s.io/v1"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta1"
_JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of Kueue's Workload: the UID of what it admits. Source: pkg/controller/constants of kubernetes-sigs/kueue."""
MOST_EXPLAINED = 20
"""Waiting pods of a workload that are explained. Each costs a read of its Events."""
_ENDED = ("Succeeded", "Failed")
_NOT_FOUND = 404
_FORBIDDEN = 403


def read_why(client: Client, name: PodName) -> PodWhy:
    """Why the pod waits, or where it runs. Raises KubeError if the pod itself cannot be read."""
    path = f"/api/v1/namespaces/{quote(name.namespace, safe='')}/pods/{quote(name.name, safe='')}"
    try:
        pod = client.get(path)
    except ApiError as err:
        if err.status == _NOT_FOUND:
            raise KubeError(no_such_pod(client, name)) from err
        raise
    reading = _Reading(client, name.namespace, [pod])
    answer = reading.why(pod)
    return replace(answer, notes=tuple(reading.notes))


def read_workload_why(client: Client, namespace: str, workload: Workload) -> WorkloadWhy:
    """Why the pods of a workload wait, or are not there. Raises KubeError if it or its pods cannot be read."""
    kind = workload.kind
    name = PodName(namespace, workload.name)
    try:
        stored = client.get(kind.path(namespace, workload.name))
    except ApiError as err:
        if err.status == _NOT_FOUND:
            raise KubeError(no_such_workload(client, namespace, workload)) from err
        raise
    pods = _pods_of(client, namespace, pods_selector(workload, stored))
    reading = _Reading(client, namespace, pods)
    waiting = [pod for pod in pods if not settled(pod)]
    others = [pod for pod in pods if settled(pod)]
    explained = waiting[:MOST_EXPLAINED]
    wanted = pods_wanted(kind, stored)
    living = sum(mapping(pod.get("status")).get("phase") not in _ENDED for pod in pods)
    missing = None if wanted is None else max(0, wanted - living)
    return WorkloadWhy(
        kind=kind.kind,
        name=name,
        pods=tuple(reading.why(pod) for pod in (*explained, *others)),
        more=len(waiting) - len(explained),
        missing=missing,
        text=reading.why_missing(workload, stored) if missing or not pods else "",
        notes=tuple(reading.notes),
    )


def _pods_of(client: Client, namespace: str, selector: str) -> list[Mapping[str, Any]]:
    """The pods that the selector selects, by name; none without a selector, which would select all."""
    if not selector:
        return []
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    pods = list_pages(client, path, _itself, {"labelSelector": selector}).items
    return sorted(pods, key=_name)


def no_such_pod(client: Client, name: PodName) -> str:
    """That there is no such pod, with what was probably meant, as far as the user may read that."""
    sentence = f"there is no pod {name.name} in namespace {name.namespace}"
    for kind in KINDS:
        try:
            client.get(kind.path(name.namespace, name.name))
        except ApiError:
            # There is none, or the user may not read it.
            continue
        except KubeError:
            return sentence
        return f"{sentence}; did you mean {kind.kind.lower()}/{name.name}?"
    folder = f"/api/v1/namespaces/{quote(name.namespace, safe='')}/pods"
    return f"{sentence}{_meant(client, name.name, folder, '/api/v1/pods')}"


def no_such_workload(client: Client, namespace: str, workload: Workload) -> str:
    """That there is no such workload, with what was probably meant, as far as the user may read that."""
    kind = workload.kind
    sentence = f"there is no {kind.kind} {workload.name} in namespace {namespace}"
    try:
        client.page(kind.folder(namespace), {"limit": 1})
    except ApiError as err:
        if err.status == _NOT_FOUND:
            return f"{sentence}: the cluster has no {kind.resource}.{kind.group} of version {kind.version}"
    except KubeError:
        return sentence
    return f"{sentence}{_meant(client, workload.name, kind.folder(namespace), kind.folder())}"


def _meant(client: Client, name: str, folder: str, folder_of_all: str) -> str:
    """The end of a sentence about an object that there is not: another namespace, or the most similar name.

    Args:
        client: the API server's.
        name: of the object.
        folder: path of the objects of its namespace.
        folder_of_all: path of those of all namespaces, which many users may not list.
    """
    elsewhere = _listed_if_allowed(client, folder_of_all, _namespace, {"fieldSelector": f"metadata.name={name}"})
    if elsewhere:
        return f"; there is one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
    return did_you_mean(name, _listed_if_allowed(client, folder, _name))


def _listed_if_allowed(client: Client, path: str, keep: Keep[str], params: Params | None = None) -> list[str]:
    """What is listed; nothing if it cannot be, as this only helps."""
    try:
        return list_pages(client, path, keep, params).items
    except KubeError:
        return []


@dataclass(slots=True)
class _Reading:
    """The reads for pods of one namespace.

    Attributes:
        client: the API server's.
        namespace: of the pods.
        pods: Pod objects. The cluster is read once, with everything that one of them needs.
        notes: what could not be read, each once.
    """

    client: Client
    namespace: str
    pods: Sequence[Mapping[str, Any]]
    notes: list[str] = field(default_factory=list)
    _read: Cluster | None = None

    def why(self, pod: Mapping[str, Any]) -> PodWhy:
        """The answer about one of the pods, without the notes."""
        name = PodName(self.namespace, _name(pod))
        where = settled(pod)
        if where:
            return PodWhy(name, waits=False, text=where)
        events = self._events(pod)
        if mapping(pod.get("spec")).get("nodeName"):
            return PodWhy(name, waits=True, text=not_started(pod, events) or waits_for(pod))
        if self._read is None:
            self._read = self._cluster()
        return PodWhy(name, waits=True, text=pod_reason(pod, events, self._read))

    def why_missing(self, workload: Workload, stored: Mapping[str, Any]) -> str:
        """Why the workload has fewer pods than it should."""
        queued = self._queued(stored) if is_suspended(stored) else None
        return why_without_pods(workload, stored, self._events(stored), queued)

    def _queued(self, stored: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Kueue's Workloads for an object."""
        path = f"{_KUEUE}/namespaces/{quote(self.namespace, safe='')}/workloads"
        items = self._listed("workloads of Kueue", path, _itself, {"labelSelector": f"{_JOB_UID}={_uid(stored)}"})
        return None if items is None else {"items": items}

    def _events(self, stored: Mapping[str, Any]) -> Mapping[str, Any] | None:
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/events"
        selector = {"fieldSelector": f"involvedObject.uid={_uid(stored)}"}
        items = self._listed("events", path, _itself, selector)
        return None if items is None else {"items": items}

    def _cluster(self) -> Cluster:
        cluster = Cluster()
        nodes: list[None] | None = self._listed("nodes", "/api/v1/nodes", _counted(cluster.node))
        may_use_claims = self._has_claims() or self._asks_for_gpus()
        if self._asks_for_gpus() or not self._has_claims():
            self._listed("pods", "/api/v1/pods", _counted(cluster.pod))
        if may_use_claims:
            cluster.claims = self._claims(cluster, has_nodes=nodes is not None)
        return cluster

    def _claims(self, cluster: Cluster, *, has_nodes: bool) -> ClaimCluster:
        slices = self._listed("resourceslices", f"{_API}/resourceslices", read_slice)
        classes = self._listed("deviceclasses", f"{_API}/deviceclasses", read_class)
        claims, has_all = self._read_claims()
        return ClaimCluster(
            published=None if slices is None else published(slices),
            claims=None if claims is None else {claim.name: claim for claim in claims},
            has_all_claims=has_all,
            classes=None if classes is None else {device_class.name: device_class for device_class in classes},
            templates=self._templates(),
            sites=cluster.usage.pods.sites if has_nodes else None,
            modes=cluster.modes,
        )

    def _read_claims(self) -> tuple[list[ClaimFacts] | None, bool]:
        """The claims of all namespaces; those of the pod's namespace, and False, where only these may be read."""
        try:
            return list_pages(self.client, f"{_API}/resourceclaims", read_claim).items, True
        except ApiError as err:
            if err.status == _NOT_FOUND:
                return [], True
            if err.status != _FORBIDDEN:
                self._note("resourceclaims", err)
                return None, False
            self._note("resourceclaims of all namespaces", err)
        except KubeError as err:
            self._note("resourceclaims", err)
            return None, False
        path = f"{_API}/namespaces/{quote(self.namespace, safe='')}/resourceclaims"
        return self._listed("resourceclaims of the pod's namespace", path, read_claim), False

    def _templates(self) -> list[str] | None:
        """Names of the namespace's templates; None if they are not needed, or cannot be read."""
        if not any(claim.get("resourceClaimTemplateName") for claim in self._claims_of_pods()):
            return None
        path = f"{_API}/namespaces/{quote(self.namespace, safe='')}/resourceclaimtemplates"
        return self._listed("resourceclaimtemplates", path, _name)

    def _has_claims(self) -> bool:
        return any(True for _ in self._claims_of_pods())

    def _claims_of_pods(self) -> Iterator[Mapping[str, Any]]:
        for pod in self.pods:
            yield from mappings(mapping(pod.get("spec")).get("resourceClaims"))

    def _asks_for_gpus(self) -> bool:
        return any(gpu_resources(pod) for pod in self.pods)

    def _listed(
        self,
        what: str,
        path: str,
        keep: Keep[T],
        params: Mapping[str, str] | None = None,
    ) -> list[T] | None:
        """The kept objects; None, and a note, where they cannot be read. A kind that is not served has none."""
        try:
            return list_pages(self.client, path, keep, dict(params or {})).items
        except ApiError as err:
            if err.status == _NOT_FOUND:
                return []
            self._note(what, err)
        except KubeError as err:
            self._note(what, err)
        return None

    def _note(self, what: str, err: KubeError) -> None:
        note = f"{what} could not be read, so the answer may lack something: {err}"
        if note not in self.notes:
            self.notes.append(note)


def _counted(count: Callable[[Mapping[str, Any]], None]) -> Keep[None]:
    """Counts each object while its page is read, and keeps nothing of it."""

    def counted(listed: dict[str, Any]) -> None:
        count(listed)

    return counted


def _itself(listed: dict[str, Any]) -> Mapping[str, Any]:
    return listed


def _name(stored: Mapping[str, Any]) -> str:
    return text(mapping_at(stored, "metadata").get("name"))


def _namespace(stored: Mapping[str, Any]) -> str:
    return text(mapping_at(stored, "metadata").get("namespace"))


def _uid(stored: Mapping[str, Any]) -> str:
    return text(mapping_at(stored, "metadata").get("uid"))
