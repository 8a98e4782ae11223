"""The stand-ins of kube-scheduler and of the controllers for claims, device taints and garbage: one thread for all."""

import copy
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Self

from standin.api.objects import Json, Objects
from standin.api.refusal import Refusal
from standin.scheduler.allocator import Devices, results

LOOK_S = 0.5
_ENDED = ("Succeeded", "Failed")


class ClaimScheduler:
    """Serves pods with ``spec.resourceClaims`` from `start` to `stop`; other pods are bound by those who make them."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="standin-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        with self._objects.updated:
            self._objects.updated.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        seen = 0
        while not self._stopping:
            # One change at a time: nothing is allocated between a look at the claims and the write of one.
            with self._objects.updated:
                if self._objects.version == seen:
                    self._objects.updated.wait(LOOK_S)
                seen = self._objects.version
                self._turn()

    def _turn(self) -> None:
        pods = self._all("pods")
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in _ENDED:
                self._make_claims(pod)
        self._release({pod["metadata"]["uid"]: pod for pod in pods})
        for pod in self._all("pods"):
            spec = pod["spec"]
            if spec.get("resourceClaims") and not spec.get("nodeName") and not spec.get("schedulingGates"):
                self._schedule(pod)
        self._evict()

    def _make_claims(self, pod: Json) -> None:
        """Claims from templates, as the controller of claims makes them."""
        made = {one["name"] for one in pod["status"].get("resourceClaimStatuses") or ()}
        meta = pod["metadata"]
        for reference in pod["spec"].get("resourceClaims") or ():
            name, template = reference["name"], reference.get("resourceClaimTemplateName")
            if template is None or name in made:
                continue
            found = self._get("resourceclaimtemplates", meta["namespace"], template)
            if found is None:
                continue
            owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
            metadata = {
                "name": f"{meta['name']}-{name}-{uuid.uuid4().hex[:5]}",
                "ownerReferences": [owner],
                "annotations": {"resource.kubernetes.io/pod-claim-name": name},
            }
            body = {"metadata": metadata, "spec": copy.deepcopy(found["spec"]["spec"])}
            claim = self._objects.create("resourceclaims", meta["namespace"], body)
            status = {"name": name, "resourceClaimName": claim["metadata"]["name"]}
            self._update(pod, lambda now, s=status: now["status"].setdefault("resourceClaimStatuses", []).append(s))  # type: ignore[misc]

    def _release(self, pods: Mapping[str, Json]) -> None:
        """Free what ended pods had: the claim with its pod, or the allocation of a claim that nothing else reserves."""
        for claim in self._all("resourceclaims"):
            status = claim.get("status") or {}
            kept = [one for one in status.get("reservedFor") or () if _lives(pods.get(one["uid"]))]
            owner = next(iter(claim["metadata"].get("ownerReferences") or ()), None)
            if owner and not _lives(pods.get(owner["uid"])) and not kept:
                meta = claim["metadata"]
                self._objects.delete(("resourceclaims", meta["namespace"], meta["name"]))
            elif kept != (status.get("reservedFor") or []):
                after = {**status, "reservedFor": kept} if kept else {}
                self._update(claim, lambda now, a=after: now.update(status=a))  # type: ignore[misc]

    def _schedule(self, pod: Json) -> None:
        claims = [self._get("resourceclaims", pod["metadata"]["namespace"], name) for name in claim_names(pod)]
        if len(claims) < len(pod["spec"]["resourceClaims"]) or None in claims:
            return
        classes = {one["metadata"]["name"]: one for one in self._all("deviceclasses")}
        for node in self._all("nodes"):
            name = node["metadata"]["name"]
            allocations: list[tuple[Json, list[Json] | None]] = []
            everything = self._all("resourceclaims")
            for claim in filter(None, claims):
                found = results(claim) or None
                if found is None and _names(claim) <= classes.keys():
                    planned = [{"status": _allocated(done, name)} for _, done in allocations if done]
                    found = Devices(self._slices(name), [*everything, *planned]).allocate(claim, classes)
                elif found and _node_of(claim) not in ("", name):
                    found = None
                allocations.append((claim, found))
            if all(found for _, found in allocations):
                self._bind(pod, name, [(claim, found) for claim, found in allocations if found])
                return
        if not any(one.get("reason") == "Unschedulable" for one in pod["status"].get("conditions") or ()):
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            waits["message"] = "0/1 nodes are available: 1 cannot allocate all claims."
            self._update(pod, lambda now: now["status"].setdefault("conditions", []).append(waits))

    def _bind(self, pod: Json, node: str, allocations: list[tuple[Json, list[Json]]]) -> None:
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for claim, found in allocations:
            others = (claim.get("status") or {}).get("reservedFor") or []
            status = {**_allocated(found, node), "reservedFor": [*others, consumer]}
            self._update(claim, lambda now, s=status: now.update(status=s))  # type: ignore[misc]

        def bound(now: Json) -> None:
            now["spec"]["nodeName"] = node
            now["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]

        self._update(pod, bound)

    def _evict(self) -> None:
        """Delete pods whose devices have a taint NoExecute."""
        for claim in self._all("resourceclaims"):
            devices = Devices(self._slices(_node_of(claim)), ())
            if any(taint["effect"] == "NoExecute" for result in results(claim) for taint in devices.taints(result)):
                for one in claim["status"].get("reservedFor") or ():
                    pod = self._get("pods", claim["metadata"]["namespace"], one["name"])
                    if pod and "deletionTimestamp" not in pod["metadata"]:
                        self._objects.delete(("pods", claim["metadata"]["namespace"], one["name"]), grace_s=None)

    def _slices(self, node: str) -> list[Json]:
        return [one for one in self._all("resourceslices") if one["spec"].get("nodeName") == node]

    def _all(self, resource: str) -> list[Json]:
        return self._objects.all(resource)[0]

    def _get(self, resource: str, namespace: str, name: str) -> Json | None:
        try:
            return self._objects.get((resource, namespace, name))
        except Refusal:
            return None

    def _update(self, found: Json, change: Callable[[Json], object]) -> None:
        def changed(now: Json) -> Json:
            change(now)
            return now

        meta = found["metadata"]
        self._objects.update((f"{found['kind'].lower()}s", meta["namespace"], meta["name"]), changed)


def claim_names(pod: Json) -> list[str]:
    """Names of the ResourceClaims that a pod has by now; the one for its extended resources is last."""
    made = {
        one["name"]: one.get("resourceClaimName")
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    named = [one.get("resourceClaimName") or made.get(one["name"]) for one in pod["spec"].get("resourceClaims") or ()]
    extended = extended_claim(pod).get("resourceClaimName")
    return [name for name in (*named, extended) if name]


def extended_claim(pod: Json) -> Json:
    """The claim that kube-scheduler made for a pod's extended resources, and which container has which request."""
    status: Json = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return status


def _lives(pod: Json | None) -> bool:
    return pod is not None and pod["status"].get("phase") not in _ENDED


def _names(claim: Json) -> set[str]:
    """Names of the claim's DeviceClasses."""
    requests = claim["spec"]["devices"]["requests"]
    exact = [one for request in requests for one in request.get("firstAvailable") or [request["exactly"]]]
    return {one["deviceClassName"] for one in exact}


def _allocated(found: list[Json], node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"allocation": {"devices": {"results": [*found]}, "nodeSelector": selector}}


def _node_of(claim: Json) -> str:
    """The node to which an allocation is bound; empty without one."""
    terms = ((claim.get("status") or {}).get("allocation") or {}).get("nodeSelector", {}).get("nodeSelectorTerms")
    name: str = terms[0]["matchFields"][0]["values"][0] if terms else ""
    return name
