"""Reads what one pod waits for, with the rights of the user. A read that is refused costs a note."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.pages import Keep, list_pages
from gpuscheduler.core.explain.claim_facts import ClaimFacts, read_claim, read_class
from gpuscheduler.core.explain.claim_reason import ClaimCluster
from gpuscheduler.core.explain.pod_reason import Cluster, pod_reason
from gpuscheduler.core.explain.published import published, read_slice
from gpuscheduler.core.explain.resource_name import gpu_resources
from inspectcgpu.read.waits import waits_for
from inspectcgpu.read.why import PodWhy, not_prepared, settled

T = TypeVar("T")
_API = "/apis/resource.k8s.io/v1"
_NOT_FOUND = 404
_FORBIDDEN = 403


def read_why(client: Client, name: PodName) -> PodWhy:
    """Why the pod waits, or where it runs. Raises KubeError if the pod itself cannot be read."""
    namespace = quote(name.namespace, safe="")
    try:
        pod = client.get(f"/api/v1/namespaces/{namespace}/pods/{quote(name.name, safe='')}")
    except ApiError as err:
        if err.status == _NOT_FOUND:
            raise KubeError(f"there is no pod {name.name} in namespace {name.namespace}") from err
        raise
    return _Reading(client, name, pod).why()


@dataclass(slots=True)
class _Reading:
    """The reads for one pod.

    Attributes:
        client: the API server's.
        name: of the pod.
        pod: the Pod object.
        notes: what could not be read.
    """

    client: Client
    name: PodName
    pod: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def why(self) -> PodWhy:
        """The answer."""
        where = settled(self.pod)
        if where:
            return PodWhy(self.name, waits=False, text=where)
        events = self._events()
        if mapping(self.pod.get("spec")).get("nodeName"):
            text_of_kubelet = not_prepared(events) or waits_for(self.pod)
            return PodWhy(self.name, waits=True, text=text_of_kubelet, notes=tuple(self.notes))
        reason = pod_reason(self.pod, events, self._cluster())
        return PodWhy(self.name, waits=True, text=reason, notes=tuple(self.notes))

    def _events(self) -> Mapping[str, Any] | None:
        uid = text(mapping_at(self.pod, "metadata").get("uid"))
        path = f"/api/v1/namespaces/{quote(self.name.namespace, safe='')}/events"
        selector = {"fieldSelector": f"involvedObject.uid={uid}"}
        items = self._listed("events", path, lambda event: event, selector)
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
        path = f"{_API}/namespaces/{quote(self.name.namespace, safe='')}/resourceclaims"
        return self._listed("resourceclaims of the pod's namespace", path, read_claim), False

    def _templates(self) -> list[str] | None:
        """Names of the namespace's templates; None if they are not needed, or cannot be read."""
        spec = mapping(self.pod.get("spec"))
        if not any(claim.get("resourceClaimTemplateName") for claim in mappings(spec.get("resourceClaims"))):
            return None
        path = f"{_API}/namespaces/{quote(self.name.namespace, safe='')}/resourceclaimtemplates"
        return self._listed("resourceclaimtemplates", path, _name)

    def _has_claims(self) -> bool:
        return bool(mapping(self.pod.get("spec")).get("resourceClaims"))

    def _asks_for_gpus(self) -> bool:
        return bool(gpu_resources(self.pod))

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
        self.notes.append(f"{what} could not be read, so the answer may lack something: {err}")


def _counted(count: Callable[[Mapping[str, Any]], None]) -> Keep[None]:
    """Counts each object while its page is read, and keeps nothing of it."""

    def counted(listed: dict[str, Any]) -> None:
        count(listed)

    return counted


def _name(template: Mapping[str, Any]) -> str:
    return text(mapping_at(template, "metadata").get("name"))
